"""Claims on a lease by two connections under TLS.

    bind.py ADDRESS CERTIFICATE
"""

import socket
import ssl
import struct
import sys

HOST, PORT = sys.argv[1].rsplit(":", 1)
for _ in range(2):
    context = ssl.create_default_context(cafile=sys.argv[2])
    session = context.wrap_socket(socket.create_connection((HOST, int(PORT)), timeout=20), server_hostname="localhost")
    claim = bytes([7] * 16) + bytes([1] * 64) + struct.pack("<II", 5, 0) + b"token"
    session.sendall(struct.pack("<IHHIQI", 0x48495052, 0x0100, 0x7E01, 9, len(claim), 0) + claim)
    answer = b""
    while len(answer) < 28:
        more = session.recv(28 - len(answer))
        assert more, "closed"
        answer += more
    assert answer == struct.pack("<IHHIQIi", 0x48495052, 0x0100, 0x7E01, 9, 4, 1, 0), answer
