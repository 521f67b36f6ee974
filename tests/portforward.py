"""The far end of `port-forward`: what comes goes back in capitals, by the API's protocol."""

import base64
import hashlib
import struct
from http.server import BaseHTTPRequestHandler
from typing import Any


def forward(request: BaseHTTPRequestHandler) -> None:
    """Answer an upgrade, and then what comes, until the other end has closed."""
    key = request.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    digest = hashlib.sha1(key.encode(), usedforsecurity=False).digest()
    accept = base64.b64encode(digest).decode()
    request.send_response(101)
    request.send_header("Upgrade", "websocket")
    request.send_header("Connection", "Upgrade")
    request.send_header("Sec-WebSocket-Accept", accept)
    request.send_header("Sec-WebSocket-Protocol", "v4.channel.k8s.io")
    request.end_headers()
    port = struct.pack("<H", 6006)
    for channel in (b"\0", b"\1"):
        request.wfile.write(_frame(channel + port))
    while (data := _received(request.rfile)) is not None:
        request.wfile.write(_frame(data[:1] + data[1:].upper()))


def _frame(data: bytes) -> bytes:
    assert len(data) < 126
    return bytes([0x82, len(data)]) + data


def _received(file: Any) -> bytes | None:
    """Return a client's frame of data, None at its end."""
    head = file.read(2)
    if len(head) < 2 or head[0] & 0x0F != 2:
        return None
    size = head[1] & 0x7F
    if size == 126:
        size = struct.unpack(">H", file.read(2))[0]
    mask, data = file.read(4), file.read(size)
    return bytes(byte ^ mask[place % 4] for place, byte in enumerate(data))
