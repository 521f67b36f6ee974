"""The plan for people and for programs: what a job file amounts to before anything runs.

It is what these print:

    render.py job.yaml --plan
    render.py job.yaml --plan --json
"""

import json
import sys

from k8s.base import quantity
from k8s.cli import estimate
from k8s.plan.launcher import Launcher, RunsIn
from k8s.plan.model import Plan
from k8s.render.manifests import Rendered


def rows(plan: Plan, launcher: Launcher, rendered: Rendered) -> list[tuple[str, str]]:
    """Return the plan as pairs of a label and words."""
    size, life, storage, meet = plan.size, plan.lifetime, plan.storage, plan.rendezvous
    held = estimate.of(plan)
    words = estimate.in_words(held)
    mesh = " x ".join(f"{axis} {n}" for axis, n in plan.sizing.mesh.items() if n > 1)
    found = [
        ("launcher", f"{launcher.name}: {launcher.summary}"),
        ("objects", ", ".join(f"{o['kind']} {o['metadata']['name']}" for o in rendered.objects)),
        ("image", plan.container.image or ""),
        (
            "nodes",
            f"{size.min_nodes} to {size.nodes}" if size.elastic else f"{size.nodes}",
        ),
        ("hosts", f"up to {meet.longest_host}" if rendered.objects else ""),
        ("ranks", f"{plan.sizing.world_size}, {size.procs} per node"),
        ("mode", f"{plan.sizing.mode} ({plan.sizing.reason})"),
        ("mesh", mesh or "one rank"),
        ("batch", _batch(plan)),
        (
            "rendezvous",
            f"{meet.master}:{meet.port}" if rendered.objects else "on this machine",
        ),
        ("queue", plan.scheduled.queue or "" if rendered.objects else ""),
        ("each node", _words(_each(plan)) or "nothing asked for"),
        ("in all", _words(totals(plan)) if size.nodes > 1 else ""),
        (
            "shared memory",
            "this machine's" if launcher.runs_in is RunsIn.PROCESS else plan.resources.shm,
        ),
        ("data", storage.data or "the task's own"),
        (
            "run folder",
            storage.out if launcher.runs_in is not RunsIn.PROCESS else storage.host_out,
        ),
        (
            "to stop",
            f"{life.grace} s, of which {life.shutdown} s to save{_rate(held, life.shutdown)}",
        ),
        ("restarts", launcher.restarts(plan)),
        ("rank's memory", f"about {words}" if isinstance(held, estimate.Estimate) else words),
        (
            "deadline",
            f"{life.deadline} s" if life.deadline and rendered.objects else "none",
        ),
        ("GPU hours", _gpu_hours_in_words(plan) if rendered.objects else ""),
        *(("warning", warning) for warning in plan.warnings),
        ("warning", "more memory than the device has" if _too_much(held) else ""),
    ]
    return [(name, words) for name, words in found if words]


def _too_much(held: estimate.Estimate | str) -> bool:
    return isinstance(held, estimate.Estimate) and held.too_much


def _rate(held: estimate.Estimate | str, seconds: int) -> str:
    """Say how fast the storage must be for a checkpoint to be whole when the pod is killed."""
    if isinstance(held, str):
        return ""
    size = estimate.in_binary(held.saved)
    return f" a rank's {size}, so at {estimate.in_binary(held.saved // seconds)}/s at least"


def _batch(plan: Plan) -> str:
    batches = plan.sizing.batches
    accumulated = f" x {batches.accumulation} accumulated" if batches.accumulation > 1 else ""
    return (
        f"{batches.global_batch} samples a step = {batches.micro}{accumulated} "
        f"x {batches.replicas} replicas"
    )


def _each(plan: Plan) -> dict[str, str]:
    return {**plan.resources.requests, **plan.resources.limits}


def _words(amounts: dict[str, str]) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in amounts.items())


def totals(plan: Plan) -> dict[str, str]:
    """Return what all nodes have together, /dev/shm of it too; an elastic job at its largest."""
    found = {}
    for name, amount in _each(plan).items():
        count = quantity.parse(amount) * plan.size.nodes
        found[name] = quantity.binary(int(count)) if name == "memory" else f"{count.normalize():f}"
    return found | {"shm": quantity.binary(plan.resources.shm_bytes * plan.size.nodes)}


def gpu_hours(plan: Plan) -> float | None:
    """Return the most GPU-hours that an attempt can cost, None without a deadline."""
    return (
        None
        if plan.lifetime.deadline is None
        else plan.size.nodes * plan.resources.gpu * plan.lifetime.deadline / 3600
    )


def _gpu_hours_in_words(plan: Plan) -> str:
    if not plan.resources.gpu:
        return ""
    hours = gpu_hours(plan)
    per_day = plan.size.nodes * plan.resources.gpu * 24
    return (
        f"{hours:,.1f} at the deadline" if hours is not None else f"{per_day:,} a day, no deadline"
    )


def show(plan: Plan, launcher: Launcher, rendered: Rendered) -> None:
    """Print the plan: a table on a terminal, else plain lines."""
    lines = rows(plan, launcher, rendered)
    if not sys.stdout.isatty():
        print(plan.name)
        for name, words in lines:
            print(f"  {name:15}{words}")
        return
    from rich.console import Console  # noqa: PLC0415  # a fifth of the time of all else
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("", plan.name)
    for name, words in lines:
        table.add_row(name, Text(words, style="yellow" if name == "warning" else ""))
    Console().print(table)


def tell(planned: list[tuple[Plan, Launcher, Rendered]], *, as_json: bool) -> None:
    """Print plans for people, or for programs."""
    if as_json:
        print(json_of(planned))
        return
    for one in planned:
        show(*one)


def json_of(plans: list[tuple[Plan, Launcher, Rendered]]) -> str:
    """Return the plans as a JSON list, one item per launcher."""
    return json.dumps(
        [
            {
                **plan.as_dict(),
                "pod_patch": plan.pod_patch.model_dump(by_alias=True),
                "objects": [f"{o['kind']}/{o['metadata']['name']}" for o in rendered.objects],
                "totals": totals(plan),
                "settings": plan.settings.model_dump(mode="json", by_alias=True),
                "estimate": estimate.as_json(estimate.of(plan)),
                "gpu_hours": gpu_hours(plan),
                "restarts": launcher.restarts(plan),
            }
            for plan, launcher, rendered in plans
        ],
        indent=2,
    )
