"""How a rank that ends with a fault says so: once, to the agent or to who is reading.

sys.exit(tell(fault, error))
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

from trainer.exits import Exit, Fault


def tell(fault: Fault, error: BaseException | None) -> int:
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
