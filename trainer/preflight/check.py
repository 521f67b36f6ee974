"""Whether the machines and the links between them are fit for a run, asked before its first step.

A machine that is not ends with 71 and says what it lacks; the others end with 69.

    python -m trainer.preflight                                     # this machine alone
    torchrun --nproc-per-node 2 -m trainer.preflight                # and the links between ranks
"""

import logging
import os
import socket
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from torch.utils._pytree import tree_leaves

from trainer import tasks
from trainer.config.environment import from_environment
from trainer.config.exits import Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.config.settings import Settings
from trainer.data.sets import Data, InMemory
from trainer.distributed.runtime import Runtime, as_fault, from_all, join
from trainer.preflight.links import Exchange, blame, exchange
from trainer.preflight.machine import Finding, Needs, look_at, look_over

log = logging.getLogger("trainer")

_CLOCKS_APART = 1.0  # seconds that are worth a word; no more, since nothing here depends on them
_SLOW_LINK = 0.1  # of the median link's speed


@dataclass(frozen=True)
class Report:
    """What one rank found. A machine is known by its node's number: names need not be unique."""

    rank: int
    node: int
    host: str
    findings: tuple[Finding, ...]
    exchange: Exchange | None


def preflight(settings: Settings, runtime: Runtime, data: Data) -> dict[str, float]:
    """Look over every machine and link, print the table once, and return its figures.

    All ranks call it together. Raises Fault(71) on the machine that is unfit, Fault(69) on the others.
    """
    if settings.preflight == "off":
        return {}
    began = time.monotonic()
    found = list(look_at(runtime.device))
    if runtime.local_rank == 0:  # what belongs to the machine is looked at by one of its ranks
        found = [*look_over(_needs(settings, runtime, data), settings.run_folder), *found]
    node = int(os.environ.get("GROUP_RANK", "0"))
    report = Report(runtime.rank, node, socket.gethostname(), tuple(found), exchange(runtime))
    reports = from_all(report, runtime)
    figures, links = _judge_links(reports)
    reports = [replace(r, findings=(*r.findings, *links[r.rank])) for r in reports]
    figures["seconds"] = time.monotonic() - began
    if runtime.is_main:
        log.info("preflight, %.1f s\n%s", figures["seconds"], "\n".join(_table(reports)))
    _refuse(reports, runtime.rank)
    return figures


def _needs(settings: Settings, runtime: Runtime, data: Data) -> Needs:
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    batches = settings.workers * settings.prefetch * ranks
    return Needs(
        devices=settings.devices,
        host_memory=Needs.host_memory * ranks,
        shm=batches * _batch_bytes(runtime, data) if batches else 0,
    )


def _batch_bytes(runtime: Runtime, data: Data) -> int:
    """Return the bytes of a micro-batch that workers hand over by shared memory, by the first sample."""
    if isinstance(data, InMemory) or not len(data):
        return 0
    try:
        sample = data[0]
    except Exception:  # noqa: BLE001  # a bad sample is told when it is its turn
        return 0
    arrays = sum(getattr(leaf, "nbytes", 0) for leaf in tree_leaves(sample))
    return runtime.sizing.batches.micro * arrays


def _judge_links(reports: Sequence[Report]) -> tuple[dict[str, float], list[list[Finding]]]:
    """Return the figures of the links, and what each rank's exchange amounts to."""
    seen = [report.exchange for report in reports if report.exchange]
    if len(seen) < len(reports):
        return {}, [[] for _ in reports]
    speeds = [one.link_speed for one in seen]
    usual, slowest = statistics.median(speeds), min(speeds)
    slow = speeds.index(slowest)
    before = reports[slow - 1]
    apart = [one.clock - seen[0].clock for one in seen]
    findings: list[list[Finding]] = [[] for _ in reports]
    for rank in blame([one.wrong for one in seen]):
        at = [str(observer) for observer, one in enumerate(seen) if rank in one.wrong]
        findings[rank].append(
            Finding(
                "all-reduce",
                f"its numbers arrive wrong at ranks {', '.join(at)}"
                if at
                else "receives wrong numbers",
                "its memory, device or network card corrupts data: take this machine out",
            )
        )
    figures = {
        "sum_mb_per_s": min(one.sum_speed for one in seen) / 1e6,
        "slowest_link_mb_per_s": slowest / 1e6,
        "clocks_apart_s": max(apart) - min(apart),
    }
    findings[0] += [
        Finding("all-reduce", f"{figures['sum_mb_per_s']:,.0f} MB/s"),
        Finding(
            "slowest link",
            f"{slowest / 1e6:,.0f} MB/s, rank {before.rank} on {before.host} to rank {slow} on "
            f"{reports[slow].host}; the median is {usual / 1e6:,.0f} MB/s",
            odd=slowest < _SLOW_LINK * usual,
        ),
        Finding(
            "clocks",
            f"{figures['clocks_apart_s']:.3f} s apart, to within {max(o.within for o in seen):.3f} s",
            odd=figures["clocks_apart_s"] > _CLOCKS_APART,
        ),
    ]
    return figures, findings


def _table(reports: Sequence[Report]) -> Iterator[str]:
    """Yield the lines of the table: all of the main rank's, and of the others what is remarkable."""
    for report in reports:
        for finding in report.findings:
            mark = "WRONG" if finding.wrong else "odd" if finding.odd else ""
            if mark or report.rank == 0:
                where = "" if report.rank == 0 else f" ({report.host}, rank {report.rank})"
                yield f"  {finding.what:16}{finding.seen}{where} {mark}".rstrip()


def _refuse(reports: Sequence[Report], rank: int) -> None:
    wrong = [
        (report, finding) for report in reports for finding in report.findings if finding.wrong
    ]
    if not wrong:
        return
    here = [pair for pair in wrong if pair[0].node == reports[rank].node]
    report, finding = (here or wrong)[0]
    text = f"preflight: {report.host}, rank {report.rank}: {finding.what}: {finding.seen}"
    raise Fault(Exit.MACHINE if here else Exit.PEER, f"{text}; {finding.wrong}")


def main() -> int:
    """Look over this machine, or all ranks' under torchrun, for the settings in the environment."""
    if len(sys.argv) > 1:
        print(__doc__, file=sys.stdout if sys.argv[1] in ("-h", "--help") else sys.stderr)
        return Exit.DONE if sys.argv[1] in ("-h", "--help") else Exit.CONFIG
    log_to_stderr()
    try:
        settings = from_environment().model_copy(update={"preflight": "auto"})
        data = tasks.load(settings).data(train=True)
        with join(settings) as runtime:
            preflight(settings, runtime, data)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the code says what it was
        fault = as_fault(error)
        log.error("%s (exit %s)", fault, fault.code)  # noqa: TRY400  # one line is enough
        return fault.code
    return Exit.DONE
