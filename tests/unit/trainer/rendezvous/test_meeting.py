"""Where the shared secret comes from, and which node serves."""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.ranks import free_port
from tests.unit.trainer.rendezvous.joining import contract
from trainer.config.exits import Exit, Fault
from trainer.rendezvous.meeting import SECRET, Meeting, secret_from
from trainer.rendezvous.membership import Rules

RULES = Rules(2, 2, elastic=False, peer_timeout=3, last_call=5)


def test_the_secret_is_taken_out_of_the_environment() -> None:
    environment = {SECRET: "of the job", "OTHER": "stays"}
    assert secret_from(environment) == "of the job"
    assert environment == {"OTHER": "stays"}
    assert secret_from({}) == ""


def test_the_secret_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("of the file\n", encoding="utf-8")
    assert secret_from({f"{SECRET}_FILE": str(file)}) == "of the file"
    assert secret_from({f"{SECRET}_FILE": str(file), SECRET: "of the job"}) == "of the job"


@pytest.mark.parametrize(("content", "problem"), [(None, "cannot be read"), (b" \n", "is empty")])
def test_a_file_without_a_secret_is_refused(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(Fault, match=rf"{SECRET}_FILE='.*secret': {problem}") as caught:
        secret_from({f"{SECRET}_FILE": str(file)})
    assert caught.value.code == Exit.CONFIG


def test_node_0_serves_and_another_connects() -> None:
    port = free_port()
    first, second = (
        Meeting(contract(number, nodes=2, port=port), RULES, secret="") for number in (0, 1)
    )
    with pytest.raises(ConnectionRefusedError):
        second.open()
    with first.open(), second.open() as connected:
        assert connected.getpeername() == ("127.0.0.1", port)
        assert second.server is None
        assert first.server is not None
        first.server.close()


def reached(meeting: Meeting, port: int) -> list[str]:
    """Return the addresses of this machine at which the server answers."""
    found = []
    with meeting.open():
        for address in ("127.0.0.1", "127.0.0.2", "127.0.0.3"):
            with suppress(ConnectionRefusedError), socket.create_connection((address, port), 5):
                found.append(address)
        assert meeting.server is not None
        meeting.server.close()
    return found


@pytest.mark.parametrize(
    ("name", "own", "expected"),
    [
        ("127.0.0.2", "127.0.0.2", ["127.0.0.2"]),
        ("no-such-name.invalid", "127.0.0.3", ["127.0.0.3"]),
        ("127.0.0.2", "127.0.0.3", ["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
        ("192.0.2.1", "192.0.2.1", ["127.0.0.1", "127.0.0.2", "127.0.0.3"]),  # behind a NAT
        ("127.0.0.2", None, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]),
    ],
)
def test_the_server_listens_where_the_nodes_meet(
    name: str, own: str | None, expected: list[str]
) -> None:
    port = free_port()
    given = replace(contract(0, nodes=2, port=port), address=name, local_address=own)
    assert reached(Meeting(given, RULES, secret=""), port) == expected


def test_a_port_in_use_is_a_lost_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(Fault, match=f"port {port} is in use") as caught:
            Meeting(contract(0, nodes=2, port=port), RULES, secret="").open()
    assert caught.value.code == Exit.PEER


def test_a_node_of_an_elastic_job_serves_as_soon_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    given = replace(contract(0, nodes=2, port=port), elastic=True)
    node = Meeting(given, RULES, secret="")
    # Another attempt's server still holds the port; then the name is still that of an earlier pod.
    with socket.create_server(("127.0.0.1", port)):
        node.open().close()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("trainer.rendezvous.meeting._has_address", lambda _: False)
        with pytest.raises(ConnectionRefusedError):
            node.open()
    with node.open() as connected:
        assert node.server is not None
        assert connected is node.server.own_socket
        node.server.close()
