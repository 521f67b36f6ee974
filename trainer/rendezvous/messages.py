"""The messages between a node and the rendezvous server: one line of JSON each, every field checked.

RENDEZVOUS.md has a table of the messages. Any other line ends its connection.

    line = encode("ready", clean=True, port=0)
    message = decode(line, FROM_NODE)       # None: not one of these messages
"""

import hmac
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Message = dict[str, Any]

MAX_LINE = 4096  # bytes

MAX_RANKS = 4096  # per node

HEARTBEATS_PER_SILENCE = 6  # in the time after which a silent peer is lost

_MAX_TEXT = 1000  # characters

_Check = Callable[[object], bool]


def _whole(least: int, most: int) -> _Check:
    return lambda value: type(value) is int and least <= value <= most


def _number(least: float, most: float) -> _Check:
    return lambda value: type(value) in (int, float) and least <= value <= most  # type: ignore[operator]


def _hexadecimal(length: int) -> _Check:
    pattern = re.compile(rf"[0-9a-f]{{{length}}}")
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _flag(value: object) -> bool:
    return isinstance(value, bool)


def _text(value: object) -> bool:
    """Check that a text is printable, because it is shown: no escape sequence for a terminal."""
    return isinstance(value, str) and len(value) <= _MAX_TEXT and value.isprintable()


_COUNT = _whole(0, 2**31)
_PORT = _whole(0, 65535)
_NONCE, _PROOF = _hexadecimal(32), _hexadecimal(64)

Schema = Mapping[str, Mapping[str, _Check]]

FROM_NODE: Schema = {
    "join": {
        "number": _COUNT,
        "ranks": _whole(1, MAX_RANKS),
        "nonce": _NONCE,
        "proof": _PROOF,
    },
    "ready": {"clean": _flag, "port": _PORT},
    "heartbeat": {},
    "stopping": {},
    "leave": {"done": _flag},
}

FROM_SERVER: Schema = {
    "challenge": {"nonce": _NONCE},
    "welcome": {"proof": _PROOF, "silence": _number(0.01, 3600)},
    "refused": {"reason": _text},
    "finished": {},
    "heartbeat": {"here": _COUNT},
    "start": {
        "round": _COUNT,
        "node": _COUNT,
        "nodes": _COUNT,
        "first_rank": _COUNT,
        "world_size": _COUNT,
        "port": _PORT,
    },
    "membership_changed": {"reason": _text, "lost": _flag},
    "peer_lost": {"reason": _text, "silent": _flag},
    "peer_stopping": {},
    "peer_finished": {"reason": _text, "stopped": _flag, "over": _flag},
}


def encode(kind: str, /, **fields: object) -> bytes:
    """Return a message as a line."""
    return json.dumps({"kind": kind, **fields}).encode() + b"\n"


def decode(line: bytes, schema: Schema) -> Message | None:
    """Return the message in a line; None unless it has exactly the fields of its kind, each valid."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        return None
    fields = schema.get(message["kind"])
    if fields is None or message.keys() - {"kind"} != fields.keys():
        return None
    valid = all(check(message[name]) for name, check in fields.items())
    return message if valid else None


def proof(secret: str, *parts: object) -> str:
    """Return the HMAC-SHA256 (RFC 2104) of `parts`, one of which is a fresh nonce, with key `secret`.

    The key is the job's identity with the shared secret, if there is one.
    """
    text = json.dumps([str(part) for part in parts])
    return hmac.new(secret.encode(), text.encode(), "sha256").hexdigest()
