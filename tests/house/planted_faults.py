"""Faults planted one at a time in a copy of the code, each of which a test must see.

    python -m tests.house.planted_faults               # all, some minutes
    python -m tests.house.planted_faults --only 7      # one, by its number
    python -m tests.house.planted_faults --list        # the table; starts no test

Exit code 0 when every fault was seen, else 1. A fault whose text is no longer in its
file must be rewritten.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, clean_environment

_TIMEOUT = 240.0  # seconds of one selection; a test that a fault makes hang has seen it
_TESTS_FAILED = 1  # pytest's exit code; 2 and above: it could not run them


@dataclass(frozen=True)
class Fault:
    """A change of `file` that the tests named in `tests`, paths below tests/, must fail on."""

    file: str
    before: str
    after: str
    tests: str


K8S, TRAINER = "unit/k8s", "unit/trainer"

FAULTS = [
    # the renderer
    Fault("k8s/base/quantity.py", '"Mi": 2**20', '"Mi": 10**6', f"{K8S}/base"),
    Fault("k8s/base/quantity.py", "if value <= 0:", "if value < 0:", f"{K8S}/base"),
    Fault("k8s/base/names.py", "LONGEST = 63", "LONGEST = 64", f"{K8S}/jobfile {K8S}/plan"),
    Fault(
        "k8s/jobfile/resources.py",
        "procs > resources.gpu:",
        "procs > 2 * resources.gpu:",
        f"{K8S}/jobfile/test_refusals.py",
    ),
    Fault(
        "k8s/jobfile/resources.py",
        "quantity.size(memory) <= count",
        "quantity.size(memory) < 0",
        f"{K8S}/jobfile/test_refusals.py",
    ),
    Fault(
        "k8s/jobfile/scheduling.py",
        "self.gang_timeout is not None and not self.gang",
        "False",
        f"{K8S}/jobfile",
    ),
    Fault(
        "k8s/base/model.py",
        "if len(given) != 1:",
        "if len(given) > 9:",
        f"{K8S}/jobfile",
    ),
    Fault(
        "k8s/jobfile/code.py", "if self.ssh and self.secret is None:", "if False:", f"{K8S}/jobfile"
    ),
    Fault("k8s/plan/make.py", "if left <= 0:", "if left < -999:", f"{K8S}/jobfile {K8S}/plan"),
    Fault(
        "k8s/plan/make.py",
        "no_deadline and spec.most_nodes > 1",
        "False",
        f"{K8S}/plan/test_make.py",
    ),
    Fault("k8s/plan/extras.py", "if spec.mount_job_file:", "if False:", f"{K8S}/plan"),
    Fault(
        "k8s/plan/job_kind.py",
        'get("status") == "True"',
        'get("status") != ""',
        f"{K8S}/cluster/test_state.py",
    ),
    Fault(
        "k8s/launchers/gang.py",
        'scheduler_name == "volcano"',
        'scheduler_name == ""',
        f"{K8S}/launchers {K8S}/jobfile/test_scheduling.py",
    ),
    Fault(
        "k8s/launchers/job/manifest.yaml.j2",
        "values: {{ fail_codes }}",
        "values: [1]",
        f"{K8S}/launchers/test_faults.py",
    ),
    Fault(
        "k8s/launchers/shared/pod.yaml.j2",
        "runAsNonRoot: true",
        "runAsNonRoot: false",
        f"{K8S}/render/test_manifests.py",
    ),
    Fault(
        "k8s/launchers/volcano/job_kind.py",
        "if phase is Phase.PENDING and retries:",
        "if False:",
        f"{K8S}/cluster/test_state.py",
    ),
    Fault(
        "k8s/render/manifests.py",
        "if plan.app_wrapper:",
        "if False:",
        f"{K8S}/render/test_manifests.py {K8S}/cluster/test_wrapped.py",
    ),
    Fault(
        "k8s/render/files.py",
        'if target.suffix == ".sh"',
        'if target.suffix != ".sh"',
        f"{K8S}/cli/test_command.py",
    ),
    Fault("k8s/render/archive.py", "mtime=0", "mtime=None", f"{K8S}/render/test_archive.py"),
    Fault(
        "k8s/render/archive.py",
        "status.st_mode & 0o111",
        "status.st_mode & 0o000",
        f"{K8S}/render/test_archive.py",
    ),
    Fault(
        "k8s/render/archive.py",
        "not target.is_relative_to(folder)",
        "False",
        f"{K8S}/render/test_archive.py",
    ),
    Fault(
        "k8s/render/launch_zip.py",
        "wanted += _imported(found[place])",
        "pass",
        f"{K8S}/render/test_launch_zip.py",
    ),
    Fault(
        "k8s/render/payload.py",
        "not folder.resolve().is_relative_to(base.resolve())",
        "False",
        f"{K8S}/render/test_payload.py",
    ),
    Fault("k8s/plan/own_program.py", "payload.code.sha256", '""', f"{K8S}/render/test_payload.py"),
    Fault("k8s/jobfile/run.py", "found.groups != 1", "False", f"{K8S}/jobfile/test_run.py"),
    Fault("k8s/cluster/state.py", " or state.phase.ended:", ":", f"{K8S}/cluster/test_state.py"),
    Fault(
        "k8s/cluster/control.py",
        "if not least <= nodes <= most:",
        "if not least <= nodes:",
        f"{K8S}/cluster/test_changes.py",
    ),
    Fault(
        "k8s/cluster/submit.py",
        "if own != cluster.namespace:",
        "if False:",
        f"{K8S}/cluster/test_changes.py {K8S}/cluster/test_verbs.py",
    ),
    Fault(
        "k8s/launchers/pytorchjob/migrate.py",
        'if restart != "ExitCode":',
        "if False:",
        f"{K8S}/cli/test_migrate.py",
    ),
    Fault(
        "k8s/cli/report.py",
        "plan.lifetime.deadline / 3600",
        "plan.lifetime.deadline / 60",
        f"{K8S}/cli",
    ),
    # the trainer
    Fault("trainer/config/exits.py", "DIVERGED = 72", "DIVERGED = 73", f"{TRAINER}/config"),
    Fault(
        "trainer/config/contract.py",
        "if rank >= high:",
        "if rank > high:",
        f"{TRAINER}/config/test_contract.py",
    ),
    Fault(
        "trainer/config/environment.py",
        "0 < settings.health_limit <= settings.longest_wait",
        "False",
        f"{TRAINER}/config",
    ),
    Fault(
        "trainer/plan/mesh.py",
        "if prod(sizes.values()) != world_size:",
        "if False:",
        f"{TRAINER}/plan/test_sizing.py",
    ),
    Fault(
        "trainer/plan/schedules.py",
        "return [rank, stages - 1 - rank]",
        "return [rank, stages - 2 - rank]",
        f"{TRAINER}/plan",
    ),
    Fault(
        "trainer/launcher/output/rank_output.py",
        "if len(self.incomplete) > _MAX_LINE:",
        "if False:",
        f"{TRAINER}/launcher",
    ),
    Fault(
        "trainer/rendezvous/membership.py",
        "first_rank += node.ranks",
        "first_rank += 1",
        f"{TRAINER}/rendezvous",
    ),
    Fault(
        "trainer/rendezvous/membership.py",
        "elif ends and self.state in (State.WAITING, State.RUNNING):",
        "elif ends:",
        f"{TRAINER}/rendezvous",
    ),
    Fault(
        "trainer/rendezvous/client.py",
        'proven = equal(message["proof"], theirs)',
        "proven = True",
        f"{TRAINER}/rendezvous",
    ),
    Fault(
        "trainer/rendezvous/server.py",
        "now - oldest.since <= self._silence and",
        "",
        f"{TRAINER}/rendezvous",
    ),
    Fault(
        "trainer/launcher/supervisor.py",
        "not self._signals and not seen & _FINAL",
        "not self._signals",
        "launch/test_commands.py",
    ),
    Fault(
        "trainer/distributed/optim.py",
        "peak * (step + 1) / settings.warmup_steps",
        "peak * step / settings.warmup_steps",
        f"{TRAINER}/distributed/test_optim.py",
    ),
    Fault(
        "trainer/models/ops.py",
        "slope.new_full((), -1)",
        "slope.new_full((), -2)",
        f"{TRAINER}/models/test_ops.py",
    ),
    Fault(
        "trainer/models/chain.py",
        "(count := counts[id(tensor)]) != 1:",
        "(count := counts[id(tensor)]) < 1:",
        f"{TRAINER}/models",
    ),
    Fault(
        "trainer/data/order.py",
        "torch.arange(start, start + count) < end",
        "torch.arange(start, start + count) <= end",
        f"{TRAINER}/data",
    ),
    Fault(
        "k8s/base/yaml_text.py",
        "total += sizes.get(event.anchor, 1)",
        "total += 1",
        f"{K8S}/base/test_yaml_text.py",
    ),
    Fault(
        "trainer/checkpoint/store.py",
        "return open_regular(self.root / folder / file)",
        'return (self.root / folder / file).open("rb")',
        "checkpoint/test_hostile.py",
    ),
    Fault(
        "trainer/config/printable.py",
        "\\x7f-\\x9f",
        "\\x7f",
        f"{TRAINER}/config/test_printable.py",
    ),
    Fault(
        "trainer/distributed/unpickling.py",
        "if name in _ALLOWED.get(module, ()):",
        "if True:",
        f"{TRAINER}/distributed/test_messages.py",
    ),
    Fault(
        "trainer/checkpoint/retention.py",
        "if step >= keep.every}",
        "if step > keep.every}",
        "checkpoint/test_when_and_which.py",
    ),
    Fault(
        "trainer/checkpoint/manifest.py",
        "if not compare_digest(found, checksum(body, key)):",
        "if False:",
        "checkpoint/test_complete_or_absent.py checkpoint/test_mutated.py",
    ),
    Fault(
        "trainer/strategies/__init__.py",
        "losses * batch.weights, 0.0",
        "losses, 0.0",
        f"{TRAINER}/strategies",
    ),
    Fault(
        "trainer/tasks/imagefolder.py",
        "if found != self._classes:",
        "if False:",
        f"{TRAINER}/tasks/test_images.py",
    ),
    Fault(
        "trainer/report/prometheus.py",
        'if kind == "eval":',
        'if kind == "never":',
        "launch/test_metrics.py",
    ),
    Fault(
        "trainer/watch/straggler.py",
        "_MIN_RATIO = 3.0",
        "_MIN_RATIO = 300.0",
        "faults/test_waiting.py",
    ),
    Fault(
        "trainer/preflight/machine.py",
        "if free < needed else None",
        "if free < 0 else None",
        "faults/test_preflight.py",
    ),
    Fault(
        "trainer/engine/nonfinite.py",
        "self.in_a_row >= self._run",
        "self.in_a_row > 99 + self._run",
        "faults/test_nonfinite.py",
    ),
    Fault(
        "trainer/tools/dry_run.py",
        "need.peak <= memory",
        "need.peak >= memory",
        "parity/test_dry_run.py",
    ),
    Fault(
        "trainer/rendezvous/membership.py",
        "return not self._rules.elastic and self.state is State.RUNNING",
        "return False",
        f"{TRAINER}/rendezvous/test_server.py",
    ),
    Fault(
        "trainer/engine/same_run.py",
        "if asked < before:",
        "if asked > before:",
        "checkpoint/test_same_run.py",
    ),
    Fault(
        "trainer/config/identity.py", '    "clip_norm",\n', "", f"{TRAINER}/config/test_identity.py"
    ),
    Fault(
        "trainer/data/task_contract.py",
        "if values.shape != (count,):",
        "if values.dim() > 1:",
        f"{TRAINER}/engine/test_wrong_tasks.py",
    ),
]


def main() -> int:
    """Plant each fault that was asked for, and return 1 unless all were seen."""
    asked = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    asked.add_argument("--only", type=int, metavar="N", help="the number of one fault")
    asked.add_argument("--list", action="store_true", help="print the table, run nothing")
    options = asked.parse_args()
    if options.only is not None and not 1 <= options.only <= len(FAULTS):
        asked.error(f"--only {options.only}: there are faults 1 to {len(FAULTS)}")
    numbers = [options.only] if options.only else range(1, len(FAULTS) + 1)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="planted-") as folder:
        tree = Path(folder) / "tree"
        if not options.list:
            _copy_to(tree)
        for number in numbers:
            fault = FAULTS[number - 1]
            result = _applies(fault) if options.list else _plant(fault, tree)
            bad += result not in ("seen", "applies")
            change = f"{fault.before!r} -> {fault.after!r}"
            print(f"{number:3}  {result:15}  {fault.file}: {change}  [{fault.tests}]", flush=True)
    print(f"{len(numbers) - bad} of {len(numbers)} as they should be")
    return int(bad > 0)


def _copy_to(tree: Path) -> None:
    """Copy what git knows and what is new, as it stands in the working tree."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)


def _applies(fault: Fault) -> str:
    file = ROOT / fault.file
    count = file.read_text(encoding="utf-8").count(fault.before) if file.exists() else 0
    return {0: "text not found", 1: "applies"}.get(count, "text twice")


def _plant(fault: Fault, tree: Path) -> str:
    """Return "seen" when the tests fail with the fault, else what is wrong."""
    if (result := _applies(fault)) != "applies":
        return result
    tests = [f"tests/{path}" for path in fault.tests.split()]
    if missing := [path for path in tests if not (tree / path).exists()]:
        return f"no {missing[0]}"
    file = tree / fault.file
    text = file.read_text(encoding="utf-8")
    file.write_text(text.replace(fault.before, fault.after), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        # no bytecode: two faults of one length within a second would be one to its cache
        environment = clean_environment(PYTHONPATH=str(tree), PYTHONDONTWRITEBYTECODE="1")
        ended = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return "seen"
    finally:
        file.write_text(text, encoding="utf-8")
    if ended.returncode > _TESTS_FAILED:
        return f"pytest exit {ended.returncode}"
    return "seen" if ended.returncode == _TESTS_FAILED else "NOT SEEN"


if __name__ == "__main__":
    sys.exit(main())
