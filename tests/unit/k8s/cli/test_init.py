"""render.py --init: a job file for the script in a folder."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.cli import command
from k8s.cli.init import guess
from trainer.config.exits import Fault

MAIN = "if __name__ == '__main__':\n    pass\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


CASES: list[tuple[dict[str, str], dict[str, Any], bool, str]] = [
    ({"train.py": "import torch"}, {"script": "train.py"}, False, "train.py, by its name"),
    (
        {"a.py": "x = 1", "go.py": f"import torch.cuda\n{MAIN}"},
        {"script": "go.py"},
        True,
        "go.py, a pr",
    ),
    (
        {"main.py": "\ufefffrom transformers import Trainer", "util.py": ""},
        {"script": "main.py", "patterns": "transformers"},
        True,
        "because the script imports transformers",
    ),
    (
        {"train_gpt.py": "def f():\n    import lightning as L\n", "eval.py": MAIN},
        {"script": "train_gpt.py", "patterns": "lightning"},
        True,
        "run.script: other scripts in this folder are eval.py",
    ),
    (
        {"run_clm.py": 'import torch\nif (__name__=="__main__"):\n    pass\n'},
        {"script": "run_clm.py"},
        False,
        "run_clm.py, a program of 3 lines",
    ),
    ({"main.py": "", "train.py": "("}, {"script": "train.py"}, False, "imports no known framework"),
]


@pytest.mark.parametrize(
    ("files", "run", "gpu", "note"), CASES, ids=[" ".join(c[0]) for c in CASES]
)
def test_the_script_is_found_and_each_guess_is_said(
    files: dict[str, str], run: dict[str, Any], gpu: object, note: str, tmp_path: Path
) -> None:
    values, notes = guess(write(tmp_path, files))
    assert values["run"] == run
    assert ("gpu" in values["resources"]) == gpu
    assert any(note in one for one in notes), notes


def test_what_is_printed_renders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "My Project (2)"
    folder.mkdir()
    monkeypatch.chdir(write(folder, {"train.py": "import torch", "broken.py": "\0"}))
    assert command.main(["--init"]) == 0
    seen = capsys.readouterr()
    assert "corrected by hand" not in seen.err
    assert yaml.safe_load(seen.out)["name"] == "my-project-2"
    Path("job.yaml").write_text(seen.out, encoding="utf-8")
    for launcher in ("job", "jobset", "pytorchjob", "trainjob", "volcano", "local", "docker"):
        assert command.main(["job.yaml", "--launcher", launcher, "--check"]) == 0


def test_without_a_script_it_is_64(tmp_path: Path) -> None:
    (tmp_path / "train.py").mkdir()
    (tmp_path / "data.py").write_bytes(b"\xff")
    with pytest.raises(Fault, match="--init: no script in "):
        guess(tmp_path)
