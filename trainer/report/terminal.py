"""Show a run on a terminal: the launch table, a progress bar, a summary."""

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from trainer.report.events import Event

# Fields that the table leaves out: shown by the title or another field, or only for the report.
_NOT_SHOWN = ("event", "time", "host", "code_sha256", "began", "attempt", "settings", "wall_s")


class Display:
    """Shows each event when `__call__` gets it."""

    def __init__(self) -> None:
        self._console = Console(markup=False, emoji=False)  # a path may hold [x] or :x:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task: TaskID | None = None
        self._numbers: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event["event"]:
            case "launch":
                self._console.print(_table("launch", event))
            case "step":
                speed = event["samples_per_s"]
                self._numbers |= {
                    "loss": _figure(event["loss"]),
                    "samples/s": f"{speed:,.0f}" if speed >= 100 else f"{speed:.3g}",
                }
                if self._task is None:
                    self._bar.start()
                    self._task = self._bar.add_task("training", total=event["steps"], numbers="")
                numbers = "  ".join(f"{name} {value}" for name, value in self._numbers.items())
                self._bar.update(self._task, completed=event["step"], numbers=numbers)
            case "eval":
                self._numbers["test " + event["metric"]] = _figure(event[event["metric"]])
            case "checkpoint" if event["action"] != "refused":
                self._numbers["checkpoint"] = str(event["step"])
            case "fault":
                fields = (f"{k} {_text(v)}" for k, v in event.items() if k not in ("event", "time"))
                self._console.print("fault:", ", ".join(fields))
            case "sample":
                shown = event.get("text", event.get("tokens", ""))
                self._console.print("sample:", _text(shown))
            case "usage":
                pass  # for `python -m k8s top`
            case "summary":
                self.close()
                self._console.print(_table("summary", event))
            case _:
                self.close()
                self._console.print(event["event"], event.get("message", ""))

    def close(self) -> None:
        """Stop the progress bar; its last state stays on the terminal."""
        self._bar.stop()


def _table(title: str, event: Event) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in event.items():
        if name not in _NOT_SHOWN and value not in (None, {}):
            table.add_row(name.replace("_", " "), _text(value))
    return table


def _figure(value: float) -> str:
    return f"{value:.4g}" if 0 < abs(value) < 0.001 else f"{value:,.4f}"


def _text(value: object) -> str:
    if isinstance(value, float):
        text = _figure(value)
        return text if "e" in text else text.rstrip("0").rstrip(".")
    if isinstance(value, list):
        return "\n".join(map(_text, value))
    if isinstance(value, dict):
        return ", ".join(f"{name}={_text(part)}" for name, part in value.items())
    return str(value)
