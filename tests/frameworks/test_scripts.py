"""Scripts of five frameworks, as their users write them, under the launcher and under torchrun.

make test-frameworks
"""

import os
import re
import shutil
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import pytest
import yaml

from k8s.cli import command as render
from tests.conftest import ROOT, Started, run_command
from tests.frameworks.jobs import FRAMEWORKS, SCRIPTS, STEPS, job_of, rows
from tests.ranks import free_port

ENVIRONMENT = ROOT / "build" / "frameworks"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (ENVIRONMENT / ".stamp").exists(), reason="no build/frameworks; make frameworks"
    ),
    pytest.mark.timeout(900),
    pytest.mark.parametrize("framework", FRAMEWORKS),
]

LAUNCHER = ("trainer.launch",)
TWO_RANKS = (*LAUNCHER, "--nproc-per-node", "2")

EPOCHS = 6  # of a run that is stopped
TIMES = 3
SLOWER = 1.3  # at most, of torchrun's time to the first line

VARIABLES = {
    "PATH": f"{ENVIRONMENT / 'bin'}:{os.environ['PATH']}",
    "TORCH_EXTENSIONS_DIR": str(ENVIRONMENT / "extensions"),  # what make has compiled for DeepSpeed
    "HF_HUB_OFFLINE": "1",
}


def torchrun() -> tuple[str, ...]:
    return ("torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port()))


def losses(*runs: Started) -> dict[int, str]:
    """Return the loss of each step, as it was printed."""
    text = "".join(run.read(run.out) for run in runs)
    found = re.findall(r"step (\d+) loss (\S+)", text)
    steps = [int(step) for step, _ in found]
    assert len(set(steps)) == len(steps), "a step was done twice"
    return dict(zip(steps, (loss for _, loss in found), strict=True))


class Begin(Protocol):
    """Starts the framework's script under `module` and its options."""

    def __call__(
        self,
        *module: str,
        epochs: int = 1,
        bad_row: int | None = None,
        variables: Mapping[str, str] = ...,
    ) -> Started: ...


@pytest.fixture
def begin(framework: str, tmp_path: Path) -> Iterator[Begin]:
    """Start runs; those of one test share the folder for checkpoints."""
    running: list[Started] = []
    script = SCRIPTS / f"train_{framework}.py"

    def begin(
        *module: str,
        epochs: int = 1,
        bad_row: int | None = None,
        variables: Mapping[str, str] = VARIABLES,
    ) -> Started:
        folder = tmp_path / f"run-{len(running)}"
        folder.mkdir()
        (folder / "rows.txt").write_text(rows(bad_row), encoding="utf-8")
        arguments = ["-m", *module, str(script), "--data", "rows.txt", "--epochs", str(epochs)]
        running.append(
            Started(
                folder,
                *arguments,
                "--folder",
                str(tmp_path / "checkpoints"),
                env=variables,
                python=str(ENVIRONMENT / "bin" / "python"),
            )
        )
        return running[-1]

    yield begin
    for run in running:
        run.clear()


def end(run: Started, code: int) -> None:
    assert run.process.wait(120) == code, run.read(run.stderr)


def seconds_to_first_line(run: Started) -> float:
    began = time.monotonic()
    run.wait_for("step 1 loss")
    return time.monotonic() - began


def test_losses_are_torchruns_and_the_start_is_no_slower(framework: str, begin: Begin) -> None:
    seconds: dict[str, list[float]] = {"launcher": [], "torchrun": []}
    found = []
    for _ in range(TIMES):
        for name, module in (("launcher", TWO_RANKS), ("torchrun", torchrun())):
            run = begin(*module)
            seconds[name].append(seconds_to_first_line(run))
            end(run, 0)
            found.append(losses(run))
    assert list(found[0]) == [*range(1, STEPS + 1)]
    assert all(one == found[0] for one in found)
    ours, theirs = statistics.median(seconds["launcher"]), statistics.median(seconds["torchrun"])
    print(
        f"{framework}: first line after {ours:.1f} s, torchrun {theirs:.1f} s: {ours / theirs:.2f}"
    )
    assert ours / theirs <= SLOWER, seconds


def one_node(begin: Begin, epochs: int) -> list[Started]:
    return [begin(*TWO_RANKS, epochs=epochs)]


def two_nodes(begin: Begin, epochs: int) -> list[Started]:
    variables = VARIABLES | {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(free_port()),
    }
    return [
        begin(*LAUNCHER, epochs=epochs, variables=variables | {"PET_NODE_RANK": str(number)})
        for number in range(2)
    ]


def test_two_nodes_of_one_rank_give_the_losses_of_torchrun(framework: str, begin: Begin) -> None:
    nodes = two_nodes(begin, 1)
    for node in nodes:
        end(node, 0)
    theirs = begin(*torchrun())
    end(theirs, 0)
    assert losses(*nodes) == losses(theirs)


@pytest.mark.parametrize("start", [one_node, two_nodes])
def test_sigterm_saves_and_the_next_start_continues_exactly(
    framework: str, begin: Begin, start: Callable[[Begin, int], list[Started]]
) -> None:
    whole = begin(*TWO_RANKS, epochs=EPOCHS)
    end(whole, 0)
    stopped = start(begin, EPOCHS)
    stopped[0].wait_for("step 10 loss")
    for node in stopped:
        node.process.send_signal(signal.SIGTERM)
    for node in stopped:
        end(node, 143)
    assert 10 <= len(losses(*stopped)) < STEPS * EPOCHS
    resumed = start(begin, EPOCHS)
    for node in resumed:
        end(node, 0)
    assert losses(*stopped, *resumed) == losses(whole)


def test_the_rank_that_raises_is_the_one_that_is_named(framework: str, begin: Begin) -> None:
    run = begin(*TWO_RANKS, bad_row=100)
    end(run, 70)
    error = run.read(run.stderr)
    named = re.findall(r"^launch: rank (\d)", error, re.MULTILINE)
    raised = re.findall(r"^\[rank (\d)\] .*ValueError: .*'.*oops'", error, re.MULTILINE)
    assert named[0] == raised[0], error
    first = re.findall(r"^\[rank (\d)\] .*Traceback", error, re.MULTILINE)[0]
    assert first == raised[0], error


def test_its_job_runs_on_this_machine(framework: str, tmp_path: Path) -> None:
    """As `make run JOB=...` does: the same job file as for a cluster, rendered for `local`."""
    values = job_of(framework)
    values["run"]["args"][-1] = str(tmp_path / "checkpoints")
    for script in (SCRIPTS / f"train_{framework}.py", SCRIPTS / "rows.py"):
        shutil.copy(script, tmp_path)
    (tmp_path / "rows.txt").write_text(rows(), encoding="utf-8")
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    assert render.main([str(file), "--launcher", "local", "-o", str(tmp_path / "out")]) == 0
    done = run_command(
        ["sh", tmp_path / "out" / "local.sh"],
        folder=tmp_path,
        env={**VARIABLES, "PYTHON": str(ENVIRONMENT / "bin" / "python")},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    steps = [int(step) for step in re.findall(r"step (\d+) loss \S+", done.stdout)]
    assert steps == [*range(1, STEPS + 1)]
