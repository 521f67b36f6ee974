"""Any command under the launcher: torchrun's variables, exit codes, restarts, and no package needed."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import ROOT, run_command
from tests.launch.test_nodes import node
from tests.ranks import free_port

pytestmark = pytest.mark.slow

SHOW = """
import json, os, sys
names = ("RANK", "LOCAL_", "WORLD_", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_", "OMP_", "MUSTER_")
sys.stdout.write(json.dumps({
    "arguments": sys.argv[1:],
    "variables": {name: value for name, value in os.environ.items() if name.startswith(names)},
    "packages": sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "numpy"}),
    "leads": os.getsid(0) == os.getpid(),
}) + "\\n")
"""


def shown(text: str) -> list[dict[str, Any]]:
    """Return what each rank has shown, by rank."""
    lines = [line.partition("] ")[2] or line for line in text.splitlines()]
    found = [json.loads(line) for line in lines if line.startswith('{"arguments"')]
    return sorted(found, key=lambda one: int(one["variables"]["RANK"]))


def launch(start: Any, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Return the exit code, standard output and standard error; of one rank by default."""
    known = {"PET_NPROC_PER_NODE": "1", "PYTHONPATH": str(ROOT)}  # else torch counts accelerators
    started = start("-m", "trainer.launch", *arguments, **(known | variables))
    code = started.process.wait(60)
    return code, started.read(started.out), started.read(started.stderr)


def test_a_rank_of_any_program_gets_what_torchrun_gives(start: Any, tmp_path: Path) -> None:
    script = tmp_path / "show.py"
    script.write_text(SHOW, encoding="utf-8")
    code, out, error = launch(
        start, "--nproc-per-node", "2", "--max_restarts=3", str(script), "--lr", "1"
    )
    assert code == 0, error
    ranks = shown(out)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += ["--max-restarts", "3", "--master-port", str(free_port()), str(script), "--lr", "1"]
    theirs = run_command(command, check=True)
    for ours, torchruns in zip(ranks, shown(theirs.stdout), strict=True):
        assert ours["arguments"] == torchruns["arguments"] == ["--lr", "1"]
        same = torchruns["variables"].keys() - {
            "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_SIGNALS_TO_HANDLE",
        }  # fmt: skip
        assert {name: ours["variables"][name] for name in same} == {
            name: torchruns["variables"][name] for name in same
        }
        assert ours["variables"].keys() >= torchruns["variables"].keys() - {
            "TORCHELASTIC_SIGNALS_TO_HANDLE"
        }
        assert ours["leads"]
    assert ranks[0]["variables"]["MASTER_PORT"] == ranks[1]["variables"]["MASTER_PORT"] != "0"
    assert "MUSTER_RENDEZVOUS_SECRET" not in ranks[0]["variables"]


@pytest.mark.parametrize(
    "listens", ["socket.create_server(place)", "TCPStore(*place, is_master=True)"]
)
def test_no_other_process_gets_the_port_of_rank_0(start: Any, listens: str) -> None:
    code, _, error = launch(
        start, "--", sys.executable, "-c",
        f"""if True:
        import errno, os, socket
        from torch.distributed import TCPStore
        place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        with socket.socket() as other:  # before rank 0 listens
            assert other.connect_ex(place) == errno.ECONNREFUSED
        with socket.socket() as other:
            try:
                other.bind(("", place[1]))
            except OSError as error:
                assert error.errno == errno.EADDRINUSE
            else:
                raise AssertionError("it is free")
        {listens}
        """,
    )  # fmt: skip
    assert code == 0, error


@functools.cache
def pythons() -> dict[str, str]:
    """Return the oldest Python (from 3.10 on) and the newest that are installed, by version."""
    places = [*os.get_exec_path(), *map(str, Path.home().glob(".pyenv/versions/3.*/bin"))]
    by_version = [
        [path for place in places if (path := shutil.which(f"python3.{minor}", path=place))]
        for minor in range(10, 20)
    ]

    def works(path: str) -> bool:
        return not subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode

    oldest = next(filter(works, chain(*by_version)), sys.executable)
    newest = next(filter(works, chain(*reversed(by_version))), sys.executable)
    return {"oldest": oldest, "newest": newest}


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_it_runs_on_the_standard_library_alone(which: str, tmp_path: Path) -> None:
    """In a virtual environment without packages, with the oldest and the newest installed Python."""
    subprocess.run([pythons()[which], "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare/bin/python")
    for arguments in (["--", bare, "-c", SHOW], ["-m", "show"]):
        (tmp_path / "show.py").write_text(SHOW, encoding="utf-8")
        ended = run_command(
            [bare, "-m", "trainer.launch", *arguments],
            env={
                "PET_NPROC_PER_NODE": "2",
                "PYTHONPATH": f"{ROOT}:{tmp_path}",
                "TRAINER_OUT": str(tmp_path),
            },
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        ranks = shown(ended.stdout)
        assert [rank["variables"]["RANK"] for rank in ranks] == ["0", "1"]
        assert not any(rank["packages"] for rank in ranks)


def test_without_a_number_of_ranks_there_is_one_for_each_accelerator_or_one(start: Any) -> None:
    ended = start("-m", "trainer.launch", "--", sys.executable, "-c", SHOW).end()
    assert ended.code == 0, ended.stderr
    assert [rank["variables"]["WORLD_SIZE"] for rank in ended.events] == ["1"]


@pytest.mark.parametrize(
    "job",
    [
        node(1, 1),
        {"PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "192.0.2.7:1", "PET_NNODES": "1:2"},
    ],
    ids=["fixed", "elastic"],
)
def test_a_standalone_node_in_a_pod_of_a_job_does_not_look_for_the_job(
    job: dict[str, str], start: Any
) -> None:
    command = ("--", sys.executable, "-c", SHOW)
    code, out, error = launch(start, "--standalone", *command, **job)
    assert code == 0, error
    assert [rank["variables"]["WORLD_SIZE"] for rank in shown(out)] == ["1"]


RAISES = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        raise ValueError("out of order")
    time.sleep(60)

main()
"""


def test_the_rank_that_failed_is_shown_with_its_traceback_and_the_others_are_ended(
    start: Any,
) -> None:
    command = ("--", sys.executable, "-c", RAISES)
    code, _, error = launch(start, "--nproc-per-node=2", *command)
    assert code == 70
    assert "launch: rank 1: ValueError: out of order, with its own code 1 (exit 70)" in error
    assert "rank 0:" not in error  # ended by the launcher, so not a failure


CODES = [
    ("import sys; sys.exit(3)", 70),
    ("import sys; sys.exit(65)", 70),
    ("import sys; sys.exit(4)", 65),
    ("import sys; sys.exit(5)", 0),
    ("import sys; sys.exit(143)", 143),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 70),
    ("import os; os.kill(os.getppid(), 15); import time; time.sleep(60)", 143),
]


@pytest.mark.parametrize(("script", "code"), CODES, ids=[text[11:40] for text, _ in CODES])
def test_its_exit_code_is_one_of_the_table(script: str, code: int, start: Any) -> None:
    means = {"MUSTER_EXIT_CODES": "4=65,5=0"}
    found, _, error = launch(start, "--", sys.executable, "-c", script, **means)
    assert found == code, error


def test_a_command_does_not_ignore_sigpipe(start: Any) -> None:
    code, out, error = launch(start, "--", "sh", "-c", "kill -PIPE $$; echo it runs on")
    assert (code, out) == (70, ""), error
    assert "SIGPIPE" in error


COUNTS = """
import os, sys
print("attempt", os.environ["TORCHELASTIC_RESTART_COUNT"], flush=True)
sys.exit(os.environ["TORCHELASTIC_RESTART_COUNT"] < sys.argv[1])
"""


@pytest.mark.parametrize(("needed", "code", "attempts"), [(2, 0, 3), (9, 70, 4)])
def test_failed_ranks_are_restarted_in_place_as_often_as_allowed(
    needed: int, code: int, attempts: int, start: Any
) -> None:
    command = ("--max-restarts", "3", "--", sys.executable, "-c", COUNTS, str(needed))
    found, out, error = launch(start, *command)
    assert found == code, error
    assert out.splitlines() == [f"attempt {number}" for number in range(attempts)]
    assert "restarting the ranks, 2 of 3 times" in error


def test_ranks_that_would_fail_again_are_not_restarted(start: Any) -> None:
    final = (sys.executable, "-c", "import sys; sys.exit(3)")
    means = {"MUSTER_EXIT_CODES": "3=65"}
    code, _, error = launch(start, "--max-restarts", "3", "--", *final, **means)
    assert code == 65
    assert "restarting" not in error


STAYS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: print("told", flush=True))
print("ready", flush=True)
time.sleep(60)
time.sleep(60)
"""


def test_a_command_that_ignores_sigterm_is_killed_after_its_time_to_stop(start: Any) -> None:
    started = start(
        "-m", "trainer.launch", "--", sys.executable, "-c", STAYS, PET_SHUTDOWN_TIMEOUT="1"
    )
    started.wait_for("ready")
    family = started.family()
    began = time.monotonic()
    started.process.send_signal(signal.SIGTERM)
    assert started.process.wait(20) == 70
    assert 1 <= time.monotonic() - began < 6
    assert "told" in started.read(started.out)
    assert psutil.wait_procs(family, timeout=5)[1] == []


def test_a_command_dies_with_a_launcher_that_is_killed(start: Any) -> None:
    started = start("-m", "trainer.launch", "--", sys.executable, "-c", STAYS)
    started.wait_for("ready")
    family = started.family()
    assert len(family) == 2
    started.process.kill()
    assert psutil.wait_procs(family, timeout=5)[1] == []


REFUSED = [
    (("no-such.py",), "no-such.py: no such script"),
    (("--",), "no program after --"),
    (("-m",), "no program after -m"),
    (("--nproc", "x", "y"), "unrecognized arguments|ambiguous option"),
    (("--nproc-per-node", "two", "--", "true"), "PET_NPROC_PER_NODE='two'"),
    (("--", "no-such-command"), "no-such-command: no such command"),
    (("--", __file__), "may not be run; leave out -- before a script"),
    (("TRAINER_PEER_TIMEOUT=-1",), "TRAINER_PEER_TIMEOUT='-1': must be a number, at least 0"),
    (("MUSTER_STALL=soon",), "MUSTER_STALL='soon': must be a number, at least 0"),
    (("MUSTER_EXIT_CODES=3:65",), "MUSTER_EXIT_CODES='3:65': must be as in 3=65,4=69"),
    (("MUSTER_EXIT_CODES=3=66",), "MUSTER_EXIT_CODES='3=66': 66 is none of 0, 64"),
    (("MUSTER_PATTERNS=[",), "MUSTER_PATTERNS='[': Expecting value"),
    (("MUSTER_PATTERNS=[]",), "MUSTER_PATTERNS='[]': "),
    (('MUSTER_PATTERNS={"loss": "("}',), "MUSTER_PATTERNS=.*unterminated|missing )"),
    (('MUSTER_PATTERNS={"loss": "x"}',), "MUSTER_PATTERNS: loss='x': must be one of step, loss"),
    (("TRAINER_METRICS_PORT=70000",), "TRAINER_METRICS_PORT='70000': must be a port, 1 to 65535"),
    (("MUSTER_CODE=/none",), "set MUSTER_CODE_SHA256 and MUSTER_CODE_FOLDER, too"),
]


@pytest.mark.parametrize(("arguments", "reason"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_a_wrong_command_line_is_64_in_one_line(
    arguments: tuple[str, ...], reason: str, start: Any
) -> None:
    name, _, value = arguments[0].partition("=")
    if value:
        code, _, error = launch(start, "--", "true", **{name: value})
    else:
        code, _, error = launch(start, *arguments)
    assert code == 64
    assert any(part in error for part in reason.split("|")), error
    assert "Traceback" not in error


SECRET = {"MUSTER_RENDEZVOUS_SECRET": "shared"}


def test_two_nodes_of_any_command_meet(start: Any) -> None:
    place = node(0, free_port())  # the option changes it
    command = ("--", sys.executable, "-c", SHOW)
    nodes = [
        start("-m", "trainer.launch", "--node-rank", number, *command, **place, **SECRET)
        for number in ("0", "1")
    ]
    for one in nodes:
        assert one.process.wait(60) == 0, one.read(one.stderr)
    ranks = shown("".join(one.read(one.out) for one in nodes))
    assert [rank["variables"]["GROUP_RANK"] for rank in ranks] == ["0", "1"]
    places = {
        (rank["variables"]["MASTER_ADDR"], rank["variables"]["MASTER_PORT"]) for rank in ranks
    }
    assert len(places) == 1
    assert "MUSTER_RENDEZVOUS_SECRET" not in ranks[0]["variables"]
    assert "shared" not in "".join(one.read(one.stderr) for one in nodes)


def test_nodes_with_different_secrets_do_not_meet(start: Any) -> None:
    port = free_port()
    own = [
        node(number, port, TRAINER_RENDEZVOUS_TIMEOUT="3")
        | {"MUSTER_RENDEZVOUS_SECRET": f"secret {number}"}
        for number in range(2)
    ]
    nodes = [start("-m", "trainer.launch", "--", "true", **variables) for variables in own]
    assert [one.process.wait(60) for one in nodes] == [69, 69]
    assert "another job, attempt, or secret" in nodes[1].read(nodes[1].stderr)
    assert "only 1 of 2 nodes joined" in nodes[0].read(nodes[0].stderr)
