"""Draws `berth top` as a picture: runs it in a pseudo-terminal, which pyte emulates and Chromium paints.

    pip install pyte==0.8.2
    python3 docs/img/top.py target/release/berth 127.0.0.1:5780 docs/img/top.png
"""

import fcntl
import html
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import time

import pyte

COLUMNS, ROWS = 122, 46
COLOURS = {"default": "#d6dde6", "cyan": "#5cc8d7", "green": "#7bd88f", "red": "#ff8b82", "black": "#000000",
           "brightblack": "#6b7685"}


def screen(berth, admin, seconds):
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm-256color"
        os.execv(berth, [berth, "top", "--admin", admin])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    emulated = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(emulated)
    os.set_blocking(terminal, False)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            stream.feed(os.read(terminal, 65536))
        except BlockingIOError:
            time.sleep(0.05)
    rows = [[emulated.buffer[row][column] for column in range(COLUMNS)] for row in range(ROWS)]
    os.write(terminal, b"q")
    os.waitpid(child, 0)
    while rows and all(cell.data == " " for cell in rows[-1]):
        rows.pop()
    return rows


def page(rows):
    def span(cell):
        colour = COLOURS.get(cell.fg, "#" + cell.fg)
        weight = ";font-weight:700" if cell.bold else ""
        return f'<span style="color:{colour}{weight}">{html.escape(cell.data)}</span>'

    lines = "\n".join("".join(map(span, row)) for row in rows)
    return (f'<meta charset="utf-8"><body style="margin:0;background:#12161c"><pre style="margin:10px;font:14px/18px '
            f"'DejaVu Sans Mono',monospace\">{lines}</pre>")


def main(berth, admin, picture):
    rows = screen(berth, admin, 6)
    with tempfile.NamedTemporaryFile("w", suffix=".html") as file:
        file.write(page(rows))
        file.flush()
        size = f"--window-size={int(COLUMNS * 8.43) + 20},{len(rows) * 18 + 20}"
        subprocess.run(["chromium", "--headless", "--no-sandbox", "--hide-scrollbars", size, f"--screenshot={picture}",
                        f"file://{file.name}"], check=True, stderr=subprocess.DEVNULL)


main(*sys.argv[1:])
