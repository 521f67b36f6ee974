"""The plan of a job for people and for programs, before anything runs.

These print it:

    render.py job.yaml --plan
    render.py job.yaml --plan --json
"""

import json
import shlex
import sys

from k8s.base import quantity
from k8s.cli import estimate
from k8s.cli.estimate import Estimate
from k8s.plan import matrix
from k8s.plan.launcher import RunsIn
from k8s.plan.matrix import Cell
from k8s.plan.model import Plan
from k8s.render.manifests import Rendered
from trainer.config.printable import printable
from trainer.plan.mesh import mesh_sizes
from trainer.plan.sizing import Batches


def print_plans(jobs: list[Rendered]) -> None:
    """Print plans for people."""
    for job in jobs:
        _print_table(job.plan.name, rows(job, estimate.estimate(job.plan)))


def print_json(jobs: list[Rendered]) -> None:
    """Print plans for programs."""
    print(to_json(jobs, [estimate.estimate(job.plan) for job in jobs]))


def print_cells(cells: list[Cell]) -> None:
    """Print a line for each job of a matrix: its name, and what the matrix sets."""
    first = cells[0]
    most = f", {first.max_parallel} at a time" if first.max_parallel is not None else ""
    print(f"matrix: {len(cells)} jobs{most}; the plan below is that of the first job")
    lines = [["job", *first.values]]
    lines += [
        [cell.job.values["name"], *map(matrix.text_of, cell.values.values())] for cell in cells
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (printable(text).ljust(width) for text, width in zip(line, widths, strict=True))
        print(f"  {'  '.join(padded).rstrip()}")


def rows(rendered: Rendered, memory: Estimate | str) -> list[tuple[str, str]]:
    """Return the plan as pairs of a label and a text."""
    plan, launcher = rendered.plan, rendered.launcher
    size, life, storage, meet = plan.size, plan.lifetime, plan.storage, plan.rendezvous
    too_much = isinstance(memory, Estimate) and memory.is_too_much
    in_process = launcher.runs_in is RunsIn.PROCESS
    found = [
        ("launcher", f"{launcher.name}: {launcher.summary}"),
        ("objects", ", ".join(f"{o['kind']} {o['metadata']['name']}" for o in rendered.objects)),
        ("image", plan.container.image or ""),
        ("nodes", f"{size.min_nodes} to {size.nodes}" if size.elastic else f"{size.nodes}"),
        ("hosts", f"such as {meet.longest_host}" if rendered.objects else ""),
        ("ranks", f"{plan.ranks}, {size.procs} per node"),
        ("task", "" if in_process else _task_to_bring(plan)),
        *_training(plan, memory),
        ("carried", ", ".join(f"{one.name} {one.sha256[:10]}" for one in plan.payload.files)),
        ("rendezvous", f"{meet.master}:{meet.port}" if rendered.objects else "on this machine"),
        ("queue", plan.scheduled.queue or "" if rendered.objects else ""),
        ("each node", _amounts(plan.resources.requests) or "no requests"),
        ("in all", _amounts(totals(plan)) if size.nodes > 1 else ""),
        ("shared memory", "this machine's" if in_process else plan.resources.shm),
        ("data", storage.data or ("" if plan.program else "the task's own")),
        ("run folder", storage.host_out if in_process else storage.out),
        (
            "to stop",
            f"{life.grace} s, of which {life.shutdown} s to save{_rate(memory, life.shutdown)}",
        ),
        ("restarts", _restarts(rendered)),
        ("rank's memory", "" if plan.program else estimate.as_text(memory)),
        ("deadline", f"{life.deadline} s" if life.deadline and rendered.objects else "none"),
        ("GPU hours", _gpu_hours_text(plan) if rendered.objects else ""),
        *(("warning", warning) for warning in plan.warnings),
        ("warning", "more memory than the device has" if too_much else ""),
    ]
    return [(label, text) for label, text in found if text]


def _training(plan: Plan, memory: Estimate | str) -> list[tuple[str, str]]:
    """Return what runs: the user's own program, or the trainer's mode, mesh and batch."""
    if plan.sizing is None:
        return [("runs", shlex.join(plan.program))]
    mode = memory if isinstance(memory, Estimate) else plan.sizing
    sizes = mesh_sizes(plan.settings.mesh, mode.mode, plan.ranks, label=str)
    mesh = " x ".join(f"{axis} {n}" for axis, n in sizes.items() if n > 1)
    return [
        ("mode", f"{mode.mode} ({mode.reason})"),
        ("mesh", mesh or "one rank"),
        ("batch", _batch(plan.sizing.batches)),
    ]


def _task_to_bring(plan: Plan) -> str:
    """Return a note that the user's own task must be in the image, if `code` does not bring it."""
    if plan.program or ":" not in plan.settings.task or "PYTHONPATH" in plan.container.environment:
        return ""
    return (
        f"{plan.settings.task}: must be in the image, or in a folder or repository that code names"
    )


def _restarts(rendered: Rendered) -> str:
    life = rendered.plan.lifetime
    in_place = f"of the ranks in place, {life.max_restarts} at most; then " * life.restart_ranks
    return in_place + rendered.launcher.restarts(rendered.plan)


def _rate(memory: Estimate | str, seconds: int) -> str:
    """Return how fast the storage must be for a checkpoint to be complete when the pod is killed."""
    if isinstance(memory, str):
        return ""
    size = estimate.binary(memory.saved)
    return f" a rank's {size}, which needs {estimate.binary(memory.saved // seconds)}/s or more"


def _batch(batches: Batches) -> str:
    accumulated = f" x {batches.accumulation} accumulated" if batches.accumulation > 1 else ""
    return (
        f"{batches.global_batch} samples a step = {batches.micro}{accumulated} "
        f"x {batches.replicas} replicas"
    )


def _amounts(amounts: dict[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def totals(plan: Plan) -> dict[str, str]:
    """Return the requests of all nodes together, and their /dev/shm; an elastic job at its largest."""
    found = {}
    for name, amount in plan.resources.requests.items():
        count = quantity.parse(amount) * plan.size.nodes
        found[name] = quantity.binary(int(count)) if name == "memory" else f"{count.normalize():f}"
    return found | {"shm": quantity.binary(plan.resources.shm_bytes * plan.size.nodes)}


def gpu_hours(plan: Plan) -> float | None:
    """Return the most GPU-hours that an attempt can use until its deadline; None without a deadline."""
    if plan.lifetime.deadline is None:
        return None
    return plan.size.nodes * plan.resources.gpu * plan.lifetime.deadline / 3600


def _gpu_hours_text(plan: Plan) -> str:
    if not plan.resources.gpu:
        return ""
    if (hours := gpu_hours(plan)) is not None:
        return f"{hours:,.1f} at the deadline"
    return f"{plan.size.nodes * plan.resources.gpu * 24:,} a day, no deadline"


def _print_table(name: str, lines: list[tuple[str, str]]) -> None:
    """Print a table if the output is a terminal, else plain lines."""
    if not sys.stdout.isatty():
        print(name)
        for label, text in lines:
            print(f"  {label:15}{text}")
        return
    from rich.console import Console  # noqa: PLC0415  # a fifth of the time of all else
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("", name)
    for label, text in lines:
        table.add_row(label, Text(text, style="yellow" if label == "warning" else ""))
    Console().print(table)


def to_json(jobs: list[Rendered], found: list[Estimate | str]) -> str:
    """Return the plans as a JSON list, one item per launcher."""
    return json.dumps(
        [
            {
                **job.plan.as_dict(),
                "pod_patch": job.plan.pod_patch.model_dump(by_alias=True),
                "objects": [f"{o['kind']}/{o['metadata']['name']}" for o in job.objects],
                "totals": totals(job.plan),
                "settings": job.plan.settings.model_dump(mode="json", by_alias=True),
                "estimate": estimate.as_json(memory),
                "gpu_hours": gpu_hours(job.plan),
                "restarts": job.launcher.restarts(job.plan),
            }
            for job, memory in zip(jobs, found, strict=True)
        ],
        indent=2,
    )
