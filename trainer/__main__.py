"""One rank of a training run, or the whole run when there is only one.

python -m trainer                               # one process
torchrun --nproc-per-node 2 -m trainer          # two ranks
python -m trainer --help                        # every setting
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

from trainer.environment import from_environment, variable
from trainer.exits import MEANINGS, Exit, Fault
from trainer.orphans import die_with_the_agent
from trainer.settings import Settings

_HELP = """usage: python -m trainer

Trains a model, in the mode and with the settings that environment variables name. Without any it
trains the digits task in this process; under torchrun or trainer.launch it is one rank of many.

settings:
{settings}

exit codes:
{codes}
"""


def main() -> int:
    """Run and return the exit code."""
    if len(sys.argv) > 1:
        print(_help_text(), file=sys.stdout if sys.argv[1] in ("-h", "--help") else sys.stderr)
        return Exit.DONE if sys.argv[1] in ("-h", "--help") else Exit.CONFIG
    try:
        die_with_the_agent()
        settings = from_environment()
        # torch takes seconds to import; a wrong setting is told at once.
        if settings.dry_run is not None:
            from trainer import dry_run  # noqa: PLC0415

            return dry_run.run(settings, settings.dry_run)
        from trainer.loop import run  # noqa: PLC0415

        return run(settings)
    except Fault as fault:
        return _end(fault, None)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # the code says what it was
        from trainer.runtime import as_fault  # noqa: PLC0415

        return _end(as_fault(error), error)


def _end(fault: Fault, error: BaseException | None) -> int:
    """Tell the fault once, to the agent or to who is reading, and return its code.

    Only the training code's own errors are told with their traceback.
    """
    trace = ""
    if error is not None and fault.code == Exit.CODE:
        trace = "".join(traceback.format_exception(error))
    if (file := os.environ.get("TORCHELASTIC_ERROR_FILE")) and fault.code != Exit.STOPPED:
        details = {"py_callstack": trace, "timestamp": str(int(time.time()))}
        said = {"message": str(fault), "errorCode": int(fault.code), "extraInfo": details}
        Path(file).write_text(json.dumps({"message": said}), encoding="utf-8")
    if "MUSTER_AGENT" not in os.environ:  # trainer.launch tells it, for all its ranks once
        rank = f" rank {os.environ['RANK']}" if "RANK" in os.environ else ""
        print(f"{trace}trainer:{rank} {fault} (exit {fault.code})", file=sys.stderr, flush=True)
    return fault.code


def _help_text() -> str:
    width = max(len(variable(name)) for name in Settings.model_fields)
    settings = "\n".join(
        f"  {variable(name):{width}}  {field.description} [{_default(field.default)}]"
        for name, field in Settings.model_fields.items()
    )
    codes = "\n".join(f"  {code:3d}  {meaning.text}" for code, meaning in MEANINGS.items())
    return _HELP.format(settings=settings, codes=codes)


def _default(value: object) -> str:
    return "unset" if value is None or value == "" else str(value)


if __name__ == "__main__":
    sys.exit(main())
