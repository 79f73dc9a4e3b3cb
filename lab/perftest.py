"""Perftest against a lease: its clients run unchanged, their server is a lease.

Perftest's two ends talk over TCP before and after they measure: versions, cache sizes and the MTU, then messages of 108
bytes that describe a queue pair and memory. The client speaks first each time and waits for as many bytes. `against`
answers for a server whose queue pair and memory are the lease's.

A reader must be done within 3 seconds: then the node asks for a sign of life by writing no bytes, and perftest's readers let
nobody write.
"""

import contextlib
import ipaddress
import socket
import subprocess
import threading

PORT = 18515
DESCRIPTION = 108


def describe(qpn, psn, rkey, address, gid):
    """A side as perftest writes it: LID, outstanding reads, queue pair, PSN, key, address, GID, shared receive queue."""
    octets = ":".join(f"{octet:02x}" for octet in ipaddress.ip_address(gid).packed)
    return f"0000:0001:{qpn:06x}:{psn:06x}:{rkey:08x}:{address:016x}:{octets}:00000000:\0".encode()


def serve(listener, bind):
    """Answers one client; `bind` connects the lease to its queue pair (number, PSN, GID) and says what it got."""
    client, _ = listener.accept()
    own = None
    # Its last word is not waited for.
    with client, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while said := client.recv(4096):
            if len(said) == DESCRIPTION:
                if own is None:
                    fields = said.decode().split(":")
                    gid = str(ipaddress.ip_address(bytes(int(octet, 16) for octet in fields[6:22])))
                    bound = bind(int(fields[2], 16), int(fields[3], 16), gid)
                    own = describe(bound["qp_num"], bound["psn"], bound["rkey"], bound["remote_addr"], bound["gid"])
                said = own
            client.sendall(said)


def against(bind, program, *arguments):
    """Runs a client of perftest against what `bind` connects, and returns its exit status and what it printed."""
    with socket.create_server(("127.0.0.1", PORT)) as listener:
        server = threading.Thread(target=serve, args=(listener, bind))
        server.start()
        command = ["taskset", "-c", "1", program, "-d", "rxe1", "-x", "1", "-F", *arguments, "127.0.0.1"]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            # It may have failed before it called.
            socket.create_connection(("127.0.0.1", PORT)).close()
        server.join()
    return done.returncode, done.stdout
