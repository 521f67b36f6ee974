"""`run`: the launcher's variables for the user's own program, and what its lines say."""

import json
import re
from typing import Any

import pytest

from k8s.jobfile.run import SETS
from tests.rendering import EXAMPLE, job, planned, refused
from trainer.config.exits import Exit, Fault
from trainer.launcher.output.patterns import Patterns


def environment(**run: Any) -> dict[str, str]:
    return planned(job(run={"script": "/a.py", **run})).container.environment


@pytest.mark.parametrize(
    ("run", "words"),
    [
        ({"script": "/train.py"}, ["/train.py"]),
        ({"script": "a/é b.py", "args": ["--lr", 0.5, 3, "1e-3"]}, "a/é b.py|--lr|0.5|3|1e-3"),
        ({"module": "my_package.train", "args": ["x"]}, ["-m", "my_package.train", "x"]),
        ({"command": ["bash", "-c", "exit 3"]}, ["--", "bash", "-c", "exit 3"]),
        ({"command": ["sleep"], "args": [60]}, ["--", "sleep", "60"]),
    ],
)
def test_a_program_is_written_as_the_launcher_takes_it(
    run: dict[str, Any], words: list[str] | str
) -> None:
    wanted = words.split("|") if isinstance(words, str) else words
    assert list(planned(job(run=run)).program) == wanted


def test_what_is_not_said_is_not_set() -> None:
    assert not [name for name in environment() if name.startswith(("MUSTER_", "TRAINER_"))]


def test_exit_codes_stand_in_the_order_of_their_numbers() -> None:
    assert environment(exitCodes={10: 72, 3: 65, "4": 69})["MUSTER_EXIT_CODES"] == "3=65,4=69,10=72"
    for code in Exit:
        assert environment(exitCodes={1: int(code)})["MUSTER_EXIT_CODES"] == f"1={int(code)}"


def test_a_stall_is_in_seconds() -> None:
    assert environment(stall=600)["MUSTER_STALL"] == "600"


def test_patterns_of_ones_own_stay_as_they_are() -> None:
    own = {"loss": r"L=(?P<value>\S+) (\d+)", "samples_per_second": r"(\d+)/s"}
    assert json.loads(environment(patterns=own)["MUSTER_PATTERNS"]) == own


# Lines as each framework writes them, and what is read from them.
LINES = [
    ("transformers", " 30%|###       | 3/10 [00:01<00:02,  2.5it/s]", {"step": "3"}),
    ("transformers", "{'loss': 2.3125, 'grad_norm': 1.5, 'epoch': 0.3}", {"loss": "2.3125"}),
    ("transformers", "{'loss': '1.2e-05', 'epoch': '0.3'}", {"loss": "1.2e-05"}),
    ("transformers", "{'loss': nan, 'epoch': 0.3}", {"loss": "nan"}),
    (
        "transformers",
        "{'train_runtime': 3.1, 'train_samples_per_second': 9.6, 'train_loss': 2.1}",
        {"samples_per_second": "9.6"},
    ),
    ("transformers", "Saving model checkpoint to out/checkpoint-5", {"checkpoint": "out/checkpoint-5"}),
    (
        "lightning",
        "Epoch 0:  50%|#####     | 5/10 [00:01<00:01,  4.50it/s, v_num=0, train_loss=0.693]",
        {"step": "5", "loss": "0.693"},
    ),
    ("lightning", "Epoch 1: 100%|#| 9/9 [00:01<00:00, loss_step=-1.5]", {"step": "9", "loss": "-1.5"}),
    (
        "lightning",
        "Epoch 2/2  ━━━━━━━━━━ 7/8 0:00:00 • 0:00:00 1521.68it/s train_loss: 1.128",
        {"step": "7", "loss": "1.128"},
    ),
    ("lightning", "                                    val_loss: 1.293  ", {}),
    ("lightning", "Validation DataLoader 0:  50%|##  | 1/2 [00:00<00:00, 90.0it/s]", {}),
    ("lightning", "Sanity Checking DataLoader 0: 100%|####| 2/2 [00:00<00:00, 90.0it/s]", {}),
    ("transformers", " 50%|#####     | 1/2 [00:00<00:00, 88.1it/s]\x1b[A", {}),  # an evaluation
    ("transformers", "{'eval_loss': 2.25, 'eval_samples_per_second': 90.1, 'epoch': 1.0}", {}),
    (
        "torchtitan",
        "[titan] - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  7.9012  \x1b[36mmemory:",
        {},
    ),
    (
        "torchtitan",
        "[titan] - root - INFO - \x1b[31mstep:  1  \x1b[32mloss:  8.1309  \x1b[33mmemory:  0.9GiB",
        {"step": "1", "loss": "8.1309"},
    ),
    (
        "key=value",
        "step=10 loss=.5 samples_per_second=1200 checkpoint=/out/step-10",
        {"step": "10", "loss": ".5", "samples_per_second": "1200", "checkpoint": "/out/step-10"},
    ),
    ("key=value", "a step of loss", {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "line", "wanted"), LINES)
def test_ready_patterns_read_the_lines_of_their_framework(
    name: str, line: str, wanted: dict[str, str]
) -> None:
    shown = json.loads(environment(patterns=name)["MUSTER_PATTERNS"])
    assert shown == SETS[name]
    matches = {metric: re.search(form, line) for metric, form in shown.items()}
    found = {
        metric: one["value" if "value" in one.re.groupindex else 1]
        for metric, one in matches.items()
        if one
    }
    assert found == wanted


def test_steps_of_lightnings_epochs_are_counted_on() -> None:
    patterns = Patterns(SETS["lightning"])
    lines = [
        f"Epoch {epoch}:  50%|##  | {batch}/10 [00:01<00:01, 4.50it/s, train_loss=0.5]"
        for epoch in range(3)
        for batch in (5, 10)
    ]
    found = [event["step"] for line in lines if (event := patterns.read(line))]
    assert found == [5, 10, 15, 20, 25, 30]


def test_our_trainers_own_settings_are_not_set() -> None:
    plan = planned(job(run={"script": "/a.py"}, resources={"gpu": 2}, tensorboard=None))
    assert plan.sizing is None
    assert plan.ranks == 2
    assert "TRAINER_DEVICES" not in plan.container.environment


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["run={}"], "run: must have exactly one of script, module, command; has none"),
        (["run={script: a.py, module: a}"], "run: must have exactly one of"),
        (["run={command: []}"], "run.command=[]: must name a program, e.g. [bash, -c, ./train.sh]"),
        (["run={command: ['', a]}"], "run.command=['', 'a']: must name a program"),
        (["run.script=-x"], "run.script='-x': must be the path of a script, e.g. train.py"),
        (["run.script=''"], "run.script='': must be the path of a script"),
        (["run.module=a-b"], "run.module='a-b': must be the name of a module"),
        (["run={script: a.py, args: [yes]}"], "run.args[0]=True: must be text; write it in quotes"),
        (["run={script: a.py, stall: 0}"], "run.stall=0: must be at least 1"),
        (["run={script: a.py, patterns: keras}"], "run.patterns='keras': must be 'transformers', "),
        (["run={script: a.py, patterns: {los: (a)}}"], "run.patterns.los='los': must be 'step', "),
        (
            ["run={script: a.py, patterns: {loss: 'a(b'}}"],
            "run.patterns.loss='a(b': not a regular exp",
        ),
        (
            ["run={script: a.py, patterns: {loss: a}}"],
            "run.patterns.loss='a': has 0 groups in brackets; it must",
        ),
        (["run={script: a.py, patterns: {loss: (a)(b)}}"], "run.patterns.loss='(a)(b)': has 2 gro"),
        (["run={script: a.py, exitCodes: {3: 66}}"], "run.exitCodes.3=66: must be one of 0, 64, "),
        (["run={script: a.py}", "run.exitCodes.0=65"], "run.exitCodes.0='0': must be an exit code"),
        (
            ["run={script: a.py, exitCodes: {143: 70}}"],
            "run.exitCodes.143='143': always means that",
        ),
        (["run={script: a.py, exitCodes: {256: 65}}"], "run.exitCodes.256='256': must be an exit "),
        (["run={script: a.py, exitCodes: {a: 65}}"], "run.exitCodes.a='a': must be an exit code"),
        (["run={script: a.py, arg: [a]}"], "run.arg: no such key; did you mean run.args?"),
        (
            ["run.script=a.py", "trainer.task=digits"],
            "run: replaces our trainer, so nothing reads `trainer`",
        ),
        (
            ["trainer=", "procsPerNode=0"],
            "procsPerNode=0: only with run.command, for a program that starts the ranks itself",
        ),
        (
            ["trainer=", "run.script=a.py", "procsPerNode=0"],
            "procsPerNode=0: only with run.command",
        ),
        (
            ["trainer=", "run={command: [a]}", "procsPerNode=0", "launcher=local"],
            "procsPerNode=0: launcher local runs all nodes as one",
        ),
        (["trainer=", "run.script=a.py", "image="], "image: missing; launcher job needs it"),
        (["procsPerNode=-1"], "procsPerNode=-1: must be at least 0"),
        (["faults.restarts=pods"], "faults.restarts='pods': must be 'ranks' or 'node'"),
        (
            ["volumes=[{name: a, path: /muster, emptyDir: 1Gi}]"],
            "volumes[0].path='/muster': already used",
        ),
    ],
)
def test_a_run_that_cannot_work(
    settings: list[str], says: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = [part for setting in settings for part in ("--set", setting)]
    line = refused([str(EXAMPLE), *pairs], tmp_path, capsys)
    assert line.removeprefix("render.py: ").split(": ", 1)[1].startswith(says), line


@pytest.mark.parametrize(
    ("run", "procs", "warned"),
    [
        ({"command": ["torchrun", "t.py"]}, 8, True),
        ({"command": ["bash", "-c", "cd /a && accelerate launch t.py"]}, None, True),
        ({"module": "torch.distributed.run", "args": ["t.py"]}, 8, True),
        ({"command": ["torchrun", "t.py"]}, 0, False),
        ({"command": ["bash", "-c", "pip install deepspeed accelerate && python t.py"]}, 8, False),
        ({"script": "/t.py", "args": ["--launcher", "torchrun", "-v"]}, 8, False),
    ],
)
def test_ranks_that_would_each_start_all_ranks_are_warned_of(
    run: dict[str, Any], procs: int | None, *, warned: bool
) -> None:
    said = "\n".join(planned(job(run=run, procsPerNode=procs)).warnings)
    assert ("starts the ranks itself: set procsPerNode: 0" in said) == warned


def test_the_launchers_times_are_variables_since_there_is_no_trainer() -> None:
    env = [{"name": "TRAINER_PEER_TIMEOUT", "value": "10"}]
    plan = planned(job(run={"script": "/a.py"}, env=env))
    assert plan.container.environment["TRAINER_PEER_TIMEOUT"] == "10"
    with pytest.raises(Fault, match=r"cannot be set in env; set trainer\.peerTimeout"):
        planned(job(env=env))
    with pytest.raises(Fault, match=r"cannot be set in env; set trainer\.epochs"):
        planned(job(run={"script": "/a.py"}, env=[{"name": "TRAINER_EPOCHS", "value": "1"}]))
