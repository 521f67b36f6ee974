"""The messages: each is read as it was written; anything else is refused."""

import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trainer.rendezvous.messages import FROM_NODE, FROM_SERVER, decode, encode, proof

NONCE, PROOF = "0" * 32, "f" * 64
NODE: dict[str, dict[str, Any]] = {
    "join": {"number": 3, "ranks": 8, "nonce": NONCE, "proof": PROOF},
    "ready": {"clean": True, "port": 0},
    "heartbeat": {},
    "stopping": {},
    "leave": {"done": False},
}
SERVER: dict[str, dict[str, Any]] = {
    "challenge": {"nonce": NONCE},
    "welcome": {"proof": PROOF, "silence": 3.0},
    "refused": {"reason": "all 2 nodes have joined"},
    "finished": {},
    "heartbeat": {"here": 2},
    "start": {
        "round": 1, "node": 0, "nodes": 2, "first_rank": 0, "world_size": 2, "port": 65535,
    },
    "membership_changed": {"reason": "node 1 (::1) joined", "lost": False},
    "peer_lost": {"reason": "node 1 is gone", "silent": True},
    "peer_stopping": {},
    "peer_finished": {"reason": "node 1 has ended its part", "stopped": False, "over": False},
}  # fmt: skip
BOTH = [(NODE, FROM_NODE), (SERVER, FROM_SERVER)]

# Values that no field has: another type, out of range, or unsafe on a terminal.
WRONG: list[Any] = [
    None, [], {}, -1, 10**12, 1.5, float("nan"), "", "-1", True, "x" * 1001, "0" * 31 + "g",
    "\x1b[2J", "line\nline", [1], 2**31 + 1,
]  # fmt: skip


@pytest.mark.parametrize(("messages", "schema"), BOTH)
def test_each_message_is_read_as_it_was_written(messages: Any, schema: Any) -> None:
    assert messages.keys() == schema.keys()
    for kind, fields in messages.items():
        assert decode(encode(kind, **fields), schema) == {"kind": kind, **fields}


@pytest.mark.parametrize(("messages", "schema"), BOTH)
def test_a_field_that_is_wrong_missing_or_too_many_makes_it_no_message(
    messages: Any, schema: Any
) -> None:
    for kind, fields in messages.items():
        assert decode(encode(kind, **fields, more=1), schema) is None
        for name, right in fields.items():
            less = {other: value for other, value in fields.items() if other != name}
            assert decode(encode(kind, **less), schema) is None, (kind, name)
            for value in WRONG:
                same_kind = type(value) is type(right) or {type(value), type(right)} == {int, float}
                if same_kind and schema[kind][name](value):
                    continue  # a valid value, such as an empty reason
                assert decode(encode(kind, **less, **{name: value}), schema) is None, (kind, name)


NONSENSE = [
    b"GET / HTTP/1.1\r", b"\xff" * 4000, b"[" * 4000, b'{"kind": 1}', b'{"kind": ["join"]}', b"null",
    b'{"kind": "ready", "clean": true, "port": ' + b"9" * 4300 + b"}", b'{"kind": "start"}', b"",
]  # fmt: skip


@pytest.mark.parametrize("line", NONSENSE, ids=lambda line: str(line[:20]))
def test_nonsense_is_no_message(line: bytes) -> None:
    assert decode(line, FROM_NODE) is None


@given(st.binary(max_size=200))
def test_no_bytes_raise(line: bytes) -> None:
    found = decode(line, FROM_NODE)
    assert found is None or found["kind"] in FROM_NODE


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5))
def test_no_value_of_a_field_raises(value: Any) -> None:
    for kind, fields in NODE.items():
        for name in fields:
            line = json.dumps({"kind": kind, **fields, name: value}).encode()
            found = decode(line, FROM_NODE)
            assert found is None or found[name] == value


def test_a_proof_depends_on_every_part_and_on_where_it_ends() -> None:
    parts: list[tuple[Any, ...]] = [
        ("k", "join", "ab", "c"),
        ("k", "join", "a", "bc"),
        ("l", "join", "ab", "c"),
    ]
    parts += [("k", "welcome", "ab", "c"), ("k", "join", "ab", "c", 1)]
    assert len({proof(*one) for one in parts}) == len(parts)
