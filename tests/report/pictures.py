"""Makes the pictures of the pages: reports of real runs in a headless Chromium.

python -m tests.report.pictures      # two minutes; `make docs PICTURES=1` runs it
"""

import subprocess
import sys
import tempfile
from itertools import product
from pathlib import Path

from PIL import Image

from tests.conftest import ROOT, clean_environment, ranks_below, wait_for
from tests.report.browser import Chromium, is_drawn
from trainer.report.history import read
from trainer.report.page.write import write

FOLDER = ROOT / "trainer" / "pictures"
_WIDTH = 1000  # pixels


def main() -> None:
    """Train, write the reports, and keep what the browser shows."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as above, Chromium() as browser:
        folder = Path(above)
        train(folder / "digits", 2, TRAINER_EPOCHS="6", TRAINER_CHECKPOINT_STEPS="50")
        with_faults(folder / "with-faults")
        for lr, seed in product(("0.01", "0.03", "0.1"), ("0", "1")):
            name = f"lr{lr}-seed{seed}"
            train(folder / name, 1, TRAINER_LR=lr, TRAINER_SEED=seed, TRAINER_EPOCHS="4")
        six = sorted(one.name for one in folder.iterdir() if one.name[:2] == "lr")
        # The runs of each picture, and the element before which it is cut.
        shown = {
            "report": (["digits"], "section"),
            "report-with-faults": (["with-faults"], "section > details"),
            "report-of-six": (six, "#goodput"),
        }
        for name, (runs, rest) in shown.items():
            page = folder / f"{name}.html"
            write([read(folder / run) for run in runs], page)
            keep(browser, page, rest=rest)


def keep(browser: Chromium, page: Path, *, rest: str) -> None:
    """Save a picture of a report, up to an element."""
    with browser.open(page, width=_WIDTH) as opened:
        is_drawn(opened)
        top = opened.evaluate(f"document.querySelector('{rest}').getBoundingClientRect().y")
        cut = opened.picture().crop((0, 0, _WIDTH, int(top)))
    # Keep colours of few pixels too, such as those of a bar: a median cut would merge two causes.
    small = cut.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    small.save(FOLDER / f"{page.stem}.png", optimize=True)
    print(FOLDER / f"{page.stem}.png")


def train(run: Path, ranks: int, **settings: str) -> None:
    with start(run, ranks, **settings) as process:
        process.wait()


def with_faults(run: Path) -> None:
    """Kill a rank, then another, then ask the job to stop, and let it finish."""
    more = {"TRAINER_EPOCHS": "12", "TRAINER_CHECKPOINT_STEPS": "40", "PET_MAX_RESTARTS": "2"}
    with start(run, 2, **more) as process:
        wait_for_event(run, '"step": 60,')
        ranks_below(process.pid)[1].kill()
        wait_for_event(run, '"step": 110,')
        ranks_below(process.pid)[0].kill()
        wait_for_event(run, '"step": 150,')
        process.terminate()
    train(run, 2, **more)


def start(run: Path, ranks: int, **settings: str) -> subprocess.Popen[bytes]:
    own = {"TRAINER_OUT": str(run), "TRAINER_TASK": "digits", "PET_NPROC_PER_NODE": str(ranks)}
    return subprocess.Popen(
        [sys.executable, "-m", "trainer.launch"],
        env=clean_environment(**own, **settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def wait_for_event(run: Path, text: str) -> None:
    """Wait until the events have a text, for five minutes at most."""
    events = run / "metrics.jsonl"
    wait_for(lambda: events.exists() and text in events.read_text(encoding="utf-8"), seconds=300)


if __name__ == "__main__":
    main()
