"""Out of memory, on a device or on the host: one line with what would help, and a summary in a file.

fault = out_of_memory(error, settings, runtime)
"""

import resource
import traceback

import torch

from trainer.config.exits import Exit, Fault
from trainer.config.modes import MODES
from trainer.config.settings import Settings
from trainer.distributed.runtime import Runtime, is_out_of_memory
from trainer.watch.cgroup import available_memory

_MIB = 2**20


def out_of_memory(error: BaseException, settings: Settings, runtime: Runtime) -> Fault | None:
    """Return a fault if memory ran out, and write a summary to `logs/`; None for any other error."""
    if not is_out_of_memory(error):
        return None
    where = str(runtime.device) if isinstance(error, torch.OutOfMemoryError) else "host"
    first = (str(error).splitlines() or ["no message"])[0]
    path = settings.run_folder / "logs" / f"rank-{runtime.rank}.memory"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    lines = [f"peak of this process: {peak:,} MiB of host memory"]
    try:
        lines.append(f"left in this container: {available_memory() // _MIB:,} MiB")
        if runtime.device.type == "cuda":
            lines.append(torch.cuda.memory_summary(runtime.device))
        elif runtime.device.type != "cpu":
            statistics = torch.accelerator.memory_stats(runtime.device)
            lines += [f"{name}: {value:,}" for name, value in statistics.items()]
        path.parent.mkdir(parents=True, exist_ok=True)
        text = "\n".join([*lines, *traceback.format_exception(error)])
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
        more = f"; memory and stack are in {path}"
    except (OSError, MemoryError):
        more = ""
    return Fault(
        Exit.CODE,
        f"out of memory ({where}): {first}; try {', '.join(_advice(settings, runtime, where))}{more}",
    )


def _advice(settings: Settings, runtime: Runtime, where: str) -> list[str]:
    micro, mode = runtime.sizing.batches.micro, runtime.sizing.mode
    advice = [f"TRAINER_MICRO_BATCH={micro // 2} (now {micro})"] if micro > 1 else []
    if not MODES[mode].sharded:
        advice.append("more ranks with TRAINER_MODE=fsdp")
    elif not settings.reshard:
        advice.append("TRAINER_RESHARD=true")
    elif where != "host" and not settings.cpu_offload:
        advice.append("TRAINER_CPU_OFFLOAD=true")
    if where == "host":
        advice.append("a larger resources.memory")
        if settings.workers:
            advice.append(f"fewer TRAINER_WORKERS (now {settings.workers})")
    return advice or ["a device with more memory"]
