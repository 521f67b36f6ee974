"""Writes what happened in a run, or in several side by side, as one HTML file.

python -m trainer.report runs/digits                      # writes runs/digits/report.html
python -m trainer.report runs/a runs/b -o compared.html
python -m trainer.report runs/digits --serve              # while the run goes on, in a browser here
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from trainer.arguments import Parser, run_tool
from trainer.config.exits import Exit, Fault
from trainer.config.log import log_to_stderr
from trainer.report.history import read_all

_EXTRA = "pip install 'muster[report]'"


def main() -> int:
    """Write the report and return the exit code."""
    log_to_stderr()
    return run_tool("report", _write_or_serve)


def _write_or_serve() -> Iterator[str]:
    """Yield the path of the report that was written."""
    arguments = _parse()
    runs = read_all(arguments.run)
    try:
        from trainer.report.page.serve import serve  # noqa: PLC0415  # an extra
        from trainer.report.page.write import write  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Fault(Exit.MACHINE, f"no package {error.name}; install it with {_EXTRA}") from None
    if arguments.serve:
        serve(arguments.run, port=arguments.port or 0)
        return
    path = arguments.out or arguments.run[0] / "report.html"
    write(runs, path)
    yield str(path)


def _parse() -> argparse.Namespace:
    parser = Parser(
        prog="python -m trainer.report",
        description="Writes what happened in a run, or in several side by side, as one HTML file: how "
        "it ended, curves, attempts and faults, where the time went, ranks, settings. The file "
        "loads nothing from the network and can be read without JavaScript.",
    )
    parser.add_argument(
        "run", nargs="+", type=Path, help="a run folder: the TRAINER_OUT of the run"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-o", "--out", type=Path, help="the file to write; default: RUN/report.html")
    how.add_argument(
        "--serve",
        action="store_true",
        help="serve it on 127.0.0.1 instead, and update it while the runs go on; Ctrl-C ends it",
    )
    parser.add_argument("--port", type=_port, help="port for --serve; default: a free one")
    arguments = parser.parse_args()
    if arguments.port is not None and not arguments.serve:
        parser.error("--port: needs --serve")
    return arguments


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 65535")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
