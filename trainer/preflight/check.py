"""Check the machines and the links between them before the first step.

An unfit machine ends with 71 and an error that says why; the others end with 69.

    python -m trainer.preflight                                     # only this machine
    torchrun --nproc-per-node 2 -m trainer.preflight                # also the links between ranks
"""

import logging
import os
import socket
import statistics
import time
from argparse import RawDescriptionHelpFormatter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trainer import tasks
from trainer.arguments import Parser
from trainer.config.environment import from_environment
from trainer.config.exits import Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.config.settings import Settings
from trainer.data.sets import Data, InMemory
from trainer.distributed.messages import from_all
from trainer.distributed.runtime import Runtime, as_fault, join
from trainer.distributed.tensors import leaves
from trainer.preflight.links import Exchange, exchange, find_faulty
from trainer.preflight.machine import Finding, check_device, check_machine

log = logging.getLogger("trainer")

_CLOCKS_APART = 1.0  # seconds that are shown as odd; not an error, since nothing depends on clocks
_SLOW_LINK = 0.1  # of the median link's speed


@dataclass(frozen=True)
class RankReport:
    """The findings of one rank. `node` identifies its machine, because host names may be equal."""

    rank: int
    node: int
    host: str
    findings: tuple[Finding, ...]
    exchange: Exchange | None


def preflight(settings: Settings, runtime: Runtime, data: Data) -> dict[str, float]:
    """Check every machine and link, print the table once, and return its figures.

    All ranks call it together. Raises Fault(71) on an unfit machine, Fault(69) on the others.
    """
    if settings.preflight == "off":
        return {}
    began = time.monotonic()
    found = list(check_device(runtime.device))
    if runtime.local_rank == 0:  # one rank checks the machine for all of its ranks
        ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        batches = settings.workers * settings.prefetch * ranks
        machine = check_machine(
            settings.run_folder,
            needed_devices=settings.devices,
            ranks=ranks,
            shm=batches * _batch_bytes(runtime, data) if batches else 0,
        )
        found = [*machine, *found]
    node = int(os.environ.get("GROUP_RANK", "0"))
    report = RankReport(runtime.rank, node, socket.gethostname(), tuple(found), exchange(runtime))
    reports = from_all(report, runtime, RankReport)
    figures, links = _judge_links(reports)
    reports = [replace(r, findings=(*r.findings, *links[r.rank])) for r in reports]
    figures["seconds"] = time.monotonic() - began
    if runtime.is_main:
        log.info("preflight, %.1f s\n%s", figures["seconds"], _table(reports))
    wrong = [(report, found) for report in reports for found in report.findings if found.wrong]
    if wrong:
        here = [pair for pair in wrong if pair[0].node == node]
        report, finding = (here or wrong)[0]
        text = f"preflight: {report.host}, rank {report.rank}: {finding.name}: {finding.seen}"
        raise Fault(Exit.MACHINE if here else Exit.PEER, f"{text}; {finding.wrong}")
    return figures


def _table(reports: Sequence[RankReport]) -> str:
    """Return all findings of rank 0, and those of other ranks that are wrong or odd, a line each."""
    lines = []
    for report in reports:
        for finding in report.findings:
            mark = "WRONG" if finding.wrong else "odd" if finding.odd else ""
            if mark or report.rank == 0:
                place = "" if report.rank == 0 else f" ({report.host}, rank {report.rank})"
                lines.append(f"  {finding.name:16}{finding.seen}{place} {mark}".rstrip())
    return "\n".join(lines)


def _batch_bytes(runtime: Runtime, data: Data) -> int:
    """Return the bytes of a micro-batch in shared memory, estimated from the first sample."""
    if isinstance(data, InMemory) or not len(data):
        return 0
    try:
        sample = data[0]
    except Exception:  # noqa: BLE001  # a bad sample is reported when it is used
        return 0
    arrays = sum(getattr(leaf, "nbytes", 0) for leaf in leaves(sample))
    return runtime.sizing.batches.micro * arrays


def _judge_links(reports: Sequence[RankReport]) -> tuple[dict[str, float], list[list[Finding]]]:
    """Return the figures of the links, and each rank's findings."""
    seen = [report.exchange for report in reports if report.exchange]
    if len(seen) < len(reports):
        return {}, [[] for _ in reports]
    speeds = [one.link_speed for one in seen]
    usual, slowest = statistics.median(speeds), min(speeds)
    slow = speeds.index(slowest)
    before = reports[slow - 1]
    apart = [one.clock - seen[0].clock for one in seen]
    findings: list[list[Finding]] = [[] for _ in reports]
    for rank in find_faulty([one.wrong for one in seen]):
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


def main() -> int:
    """Check this machine, or under torchrun those of all ranks, for the settings in the environment."""
    log_to_stderr()
    parser = Parser(
        prog="python -m trainer.preflight",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    try:
        parser.parse_args()
        settings = from_environment().model_copy(update={"preflight": "auto"})
        data = tasks.data(tasks.load(settings), settings, train=True)
        with join(settings) as runtime:
            preflight(settings, runtime, data)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the code says what it was
        fault = as_fault(error)
        log.error("%s (exit %s)", fault, fault.code)  # noqa: TRY400  # one line is enough
        return fault.code
    return Exit.DONE
