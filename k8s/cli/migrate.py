"""Turn a job's manifest into a job file: a PyTorchJob, TrainJob, JobSet or Job.

render.py --migrate pytorchjob.yaml > job.yaml

The result is rendered once, to check that `render.py` accepts it.
"""

import sys
from pathlib import Path, PurePath
from typing import Any

from k8s import launchers
from k8s.base.errors import config_error, in_one_line
from k8s.base.yaml_text import dump, read, read_text
from k8s.jobfile.validate import validate
from k8s.launchers.torchrun import (
    SET_ELSEWHERE,
    local_rank_note,
    parse,
    run_of,
    run_of_torchrun,
    without_torchrun,
)
from k8s.plan.launcher import Launcher
from k8s.plan.own_program import starts_ranks
from k8s.render.manifests import render
from trainer.config.exits import Fault


def print_migrated(path: Path) -> None:
    """Print the job file of a manifest, and notes on stderr. Raises Fault(64)."""
    launcher, job, others = _read(path)
    values, notes = migrate(launcher, job)
    notes += [f"{one}: not carried over; render.py makes what a job needs" for one in others]
    print_job_file(values, notes, head=f"From {path.name}. Not migrated:")


def print_job_file(values: dict[str, Any], notes: list[str], *, head: str) -> None:
    """Print a job file made from other input, and notes on stderr. It is rendered first, as a check."""
    try:
        spec = validate(values)
        render(spec, launchers.find(spec.launcher))
    except Fault as fault:
        notes = [*notes, f"to be corrected by hand: {fault}"]
    notes = [" ".join(note.split()) for note in notes]
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"# {' '.join(head.split())}")
    print("\n".join(f"#   {note}" for note in notes) or "#   nothing")
    print(dump([values]), end="")


def _read(path: Path) -> tuple[Launcher, dict[str, Any], list[str]]:
    """Return a file's one object that a launcher can migrate, and the names of the other objects."""
    label = f"--migrate {path}"
    documents = read(read_text(path, label=label), label=label)
    match documents:
        case [{"kind": "List", "items": list(items)}]:  # of kubectl get -o yaml without a name
            documents = items
    found = [one for one in documents if isinstance(one, dict)]
    known = {
        (launcher.job_kind.api_version, launcher.job_kind.kind): launcher
        for launcher in map(launchers.find, launchers.known())
        if launcher.migrate and launcher.job_kind
    }
    jobs = [(known[_kind(one)], one) for one in found if _kind(one) in known]
    if len(jobs) != 1:
        kinds = " or ".join(f"{kind} of {version}" for version, kind in known)
        raise config_error(f"{label}: has {len(jobs)} of these objects, must have one: {kinds}")
    others = [f"{one.get('kind')} {_name(one)}" for one in found if one is not jobs[0][1]]
    return *jobs[0], others


def _name(one: dict[str, Any]) -> str:
    metadata = one.get("metadata")
    found = metadata.get("name") if isinstance(metadata, dict) else None
    return str(found or "without a name")


def _kind(one: dict[str, Any]) -> tuple[str, str]:
    return str(one.get("apiVersion")), str(one.get("kind"))


def migrate(launcher: Launcher, job: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a job file's values for a manifest, and notes. Raises Fault(64)."""
    assert launcher.migrate  # noqa: S101  # tells mypy
    assert launcher.job_kind  # noqa: S101
    wrong = f"--migrate: not a {launcher.job_kind.kind}"
    job, made_up = _named(job)
    try:
        values, notes = launcher.migrate(job)
    except KeyError as error:
        raise config_error(f"{wrong}: {error} is missing") from None
    except ValueError as error:
        raise config_error(f"{wrong}: {in_one_line(error)}") from None
    except (TypeError, AttributeError, IndexError) as error:
        raise config_error(
            f"{wrong}: a field is empty or of another type than in Kubernetes ({in_one_line(error)})"
        ) from None
    notes = [*made_up, *notes]
    words, args = values.pop("command", []), values.pop("args", [])
    if args and not words:
        raise config_error(
            f"--migrate: args={args!r} without command: the image's entrypoint decides what runs; "
            "write it into command, and migrate again"
        )
    if not words:
        return values, notes
    found, more = _program([*words, *args])
    if "run" in found and "trainer" in values:
        names = ", ".join(values.pop("trainer"))
        more.append(f"trainer settings {names}: left out, because {words[0]} runs, not the trainer")
    return found | values, [*notes, *more]


def _named(job: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the job with a name, and a note, if it leaves the choice of a name to the API server."""
    match job:
        case {"metadata": {"generateName": str(prefix)} as metadata} if "name" not in metadata:
            name = prefix.rstrip("-.")
            note = f"a job file has one name, {name}; --set name=... for another"
            named = {**job, "metadata": {**metadata, "name": name}}
            return named, [f"generateName {prefix!r}: {note}"]
    return job, []


def _program(words: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the keys of a job file for a container's command, and notes. Raises Fault(64)."""
    dollars = []
    if any("$(" in word for word in words):
        dollars = ["run: $(NAME) is not replaced by a variable's value here; use a shell's $NAME"]
    rest = without_torchrun(words)
    if rest is not None:
        asked = parse(rest, label="--migrate: command")
        found: dict[str, Any] = {"run": run_of_torchrun(asked)}
        if asked.nproc_per_node.isdecimal():
            found["procsPerNode"] = int(asked.nproc_per_node)
        unsaid = {"nnodes": "1", "max-restarts": 0}
        given = [
            f"--{option}"
            for option in (*unsaid, *SET_ELSEWHERE)
            if getattr(asked, option.replace("-", "_")) != unsaid.get(option)
        ]
        notes = (
            [f"{' '.join(given)} of torchrun: left out; the launcher does this"] if given else []
        )
        return found, [*notes, *local_rank_note(words, asked), *dollars]
    first, *others = words
    if PurePath(first).name.startswith("python"):
        others = others[others[:1] == ["-u"] :]  # here always
        if others in (["-m", "trainer"], ["-m", "trainer.launch"]):
            return {}, []
        if others[:1] == ["-m"] and len(others) > 1:
            return {"run": run_of("module", others[1:])}, dollars
        if others and not others[0].startswith("-"):
            return {"run": run_of("script", others)}, dollars
    return {"run": {"command": words}}, [*starts_ranks(words), *dollars]
