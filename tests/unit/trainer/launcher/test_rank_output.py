"""The ranks' output through the launcher's pipes: whole lines, each with its rank, none lost."""

import os
import pty
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment
from trainer.launcher.output.rank_output import RankOutput


def run(output: RankOutput, script: str, *, ranks: tuple[int, ...] = (0, 1)) -> None:
    """Run a shell script as each rank, all at once, with RANK set."""
    files = output.files(ranks[0], world_size=9)
    running = []
    for local, rank in enumerate(ranks):
        stdout, stderr = files[local]
        command = ["sh", "-c", script]
        running.append(
            subprocess.Popen(command, stdout=stdout, stderr=stderr, env={"RANK": str(rank)})
        )
    assert [process.wait() for process in running] == [0] * len(ranks)


def test_lines_that_ranks_write_at_once_stay_whole(capfd: pytest.CaptureFixture[str]) -> None:
    script = 'for n in $(seq 500); do printf "a "; printf "b $RANK\\n"; printf "c\\n" >&2; done'
    with closing(RankOutput(2)) as output:
        run(output, script)
    out, err = capfd.readouterr()
    assert sorted(out.splitlines()) == [f"[rank {r}] a b {r}" for r in (0, 1) for _ in range(500)]
    assert sorted(err.splitlines()) == [f"[rank {rank}] c" for rank in (0, 1) for _ in range(500)]


# what a rank writes, and what is shown for rank 0 and for rank 5
LINES = [
    ('echo \'{"event": "step"}\'', '{"event": "step"}\n', '[rank 5] {"event": "step"}\n'),
    ("echo '{1: 2}'", "[rank 0] {1: 2}\n", "[rank 5] {1: 2}\n"),
    ("printf 'no end'", "[rank 0] no end\n", "[rank 5] no end\n"),
    ("printf '10%%\\r20%%\\r\\n'", "[rank 0] 10%\r[rank 0] 20%\r\n", None),
    ("printf '\\377\\n'", "[rank 0] \N{REPLACEMENT CHARACTER}\n", None),
]


@pytest.mark.parametrize(("script", "first", "other"), LINES)
def test_events_of_the_main_rank_stay_as_they_are_and_all_else_gets_its_rank(
    script: str, first: str, other: str | None, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    with closing(RankOutput(1)) as output:
        for rank, shown in ((0, first), (5, other)):
            run(output, script, ranks=(rank,))
            output.drain()
            if shown is not None:
                assert capfdbinary.readouterr().out.decode(errors="replace") == shown


def test_a_line_that_never_ends_is_broken(capfd: pytest.CaptureFixture[str]) -> None:
    with closing(RankOutput(1)) as output:
        run(output, "head -c 3000000 /dev/zero | tr '\\0' x", ranks=(3,))
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all(line.startswith("[rank 3] x") for line in lines)
    assert sum(line.count("x") for line in lines) == 3_000_000


BEGIN = (
    "import contextlib, subprocess, sys; from trainer.launcher.output.rank_output import RankOutput\n"
    "with contextlib.closing(RankOutput(1)) as one: "
)
FILES = "print([file > 2 for file in one.files(2, WORLD_SIZE)[0]], file=sys.stderr)"
MUCH = "subprocess.run(['seq', '100000'], stdout=one.files(2, 4)[0][0], check=True)"


def run_program(text: str, stdout: int) -> str:
    """Run a program with this standard output, and return its standard error."""
    ran = subprocess.run(
        [sys.executable, "-c", BEGIN + text],
        cwd=ROOT,
        env=clean_environment(),
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    os.close(stdout)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr


def test_a_terminal_is_left_to_the_ranks() -> None:
    _, terminal = pty.openpty()
    assert run_program(FILES.replace("WORLD_SIZE", "4"), terminal) == "[False, True]\n"


def test_the_only_rank_of_a_job_has_the_output_of_the_launcher(tmp_path: Path) -> None:
    file = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    assert run_program(FILES.replace("WORLD_SIZE", "1"), file) == "[False, False]\n"


def test_output_that_cannot_be_written_is_lost_and_the_ranks_go_on() -> None:
    assert run_program(MUCH, os.open("/dev/full", os.O_WRONLY)) == ""
