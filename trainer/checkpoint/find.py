"""Find the newest undamaged checkpoint. All ranks take part."""

import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from trainer.checkpoint.manifest import MANIFEST_FILE, MOST_BYTES, Damage, Manifest, decode, step_of
from trainer.checkpoint.store import Local, Store, difference, split
from trainer.config.exits import Exit, Fault
from trainer.distributed.messages import from_all, from_main
from trainer.distributed.runtime import Runtime

log = logging.getLogger("trainer")


@dataclass(frozen=True)
class Found:
    """A complete checkpoint."""

    store: Store
    name: str
    manifest: Manifest

    @property
    def where(self) -> str:
        """Its path or URL."""
        return self.store.where(self.name)


def find(resume: str, store: Store, *, runtime: Runtime) -> Found | None:
    """Return the checkpoint to resume from, the same on every rank, or None to start at step 0.

    `resume` is the setting: auto, never, or a path or URL. Each rank compares the checksums of its
    share of the files. Raises Fault(65) when the named checkpoint is damaged, all checkpoints are
    damaged, or the newest has a newer format.
    """
    if resume not in ("auto", "never"):
        elsewhere, name = split(resume)
        named = _examine(elsewhere, name, runtime=runtime)
        if isinstance(named, str):
            raise Fault(Exit.DATA, f"TRAINER_RESUME={resume}: {_not_complete(resume, named)}")
        return named
    if resume == "never":
        set_aside(store, after=0, runtime=runtime)
        return None
    names = _on_main(lambda: _swept(store), store, runtime)
    found = _newest_complete(names, store, runtime)
    if names and found is None:
        raise Fault(
            Exit.DATA,
            f"{store.where('')}: all {len(names)} checkpoints are damaged; "
            "TRAINER_RESUME=never starts over",
        )
    return found


def set_aside(store: Store, *, after: int, runtime: Runtime) -> None:
    """Move the checkpoints of more than `after` steps to another folder. All ranks call it together.

    A run that goes on from there saves earlier steps. Beside these they would be removed as old.
    """

    def move() -> list[str]:
        later = [name for name in _swept(store) if (step_of(name) or 0) > after]
        if later:
            log.info("the checkpoints after step %s are now in %s", after, store.set_aside(later))
        return later

    _on_main(move, store, runtime)


def newest(store: Store, *, before: int, runtime: Runtime) -> Found | None:
    """Return the newest complete checkpoint of less than `before` steps, the same on every rank."""
    names = _on_main(store.names, store, runtime)
    earlier = [name for name in names if (step_of(name) or 0) < before]
    return _newest_complete(earlier, store, runtime)


def _swept(store: Store) -> list[str]:
    """Return the names of the checkpoints, after removing what is left of attempts to write one."""
    store.sweep()
    return store.names()


def _on_main(act: Callable[[], list[str]], store: Store, runtime: Runtime) -> list[str]:
    """Return, on every rank, the names that `act` returns on the main one. Raises Fault(65)."""
    names: list[str] = []
    problem = ""
    if runtime.is_main:
        try:
            names = act()
        except OSError as error:
            problem = f"checkpoints {store.where('')}: {error.strerror or error}"
    names, problem = from_main((names, problem), runtime, tuple[list[str], str])
    if problem:
        raise Fault(Exit.DATA, problem)
    return names


def _newest_complete(names: list[str], store: Store, runtime: Runtime) -> Found | None:
    for name in reversed(names):
        found = _examine(store, name, runtime=runtime)
        if isinstance(found, Found):
            return found
        if runtime.is_main:
            log.warning(
                "checkpoint %s is damaged; it is skipped and kept: %s", store.where(name), found
            )
    return None


def _examine(store: Store, name: str, *, runtime: Runtime) -> Found | str:
    """Return a checkpoint, or a text that says what is damaged in it.

    All ranks call it together. Each compares its share of the files, and all get the same answer.
    """
    answer = _examine_share(store, name, runtime.rank, runtime.world_size)
    mine = isinstance(answer, Fault), None if isinstance(answer, Manifest) else str(answer)
    for is_fault, problem in from_all(mine, runtime, tuple[bool, str | None]):
        if problem is not None and is_fault:
            raise Fault(Exit.DATA, problem)
        if problem is not None:
            return problem
    assert isinstance(answer, Manifest)  # noqa: S101  # this rank's answer is among those above
    return Found(store, name, answer)


def is_shared(store: Store, *, runtime: Runtime) -> bool:
    """Return whether all ranks see the same checkpoints. For a URL this is always true.

    Raises Fault(71) when the folder cannot be written to.
    """
    if runtime.control is None or not isinstance(store, Local):
        return True
    marker = problem = ""
    if runtime.is_main:
        try:
            marker = store.create_marker()
        except OSError as error:
            problem = f"checkpoints {error.filename}: {error.strerror}"
    marker, problem = from_main((marker, problem), runtime, tuple[str, str])
    if problem:
        raise Fault(Exit.MACHINE, problem)
    shared = all(from_all((store.root / marker).exists(), runtime, bool))
    if runtime.is_main:
        (store.root / marker).unlink(missing_ok=True)
    return shared


def complete(checkpoint: str) -> Found:
    """Return the checkpoint at a path or URL; only this process examines it. Raises Fault(65)."""
    store, name = split(checkpoint)
    answer = _examine_share(store, name, 0, 1)
    if isinstance(answer, Fault):
        raise answer
    if isinstance(answer, str):
        raise Fault(Exit.DATA, f"{checkpoint}: {_not_complete(checkpoint, answer)}")
    return Found(store, name, answer)


def _not_complete(checkpoint: str, reason: str) -> str:
    """Return what is wrong; for a run's folder, the name of its newest checkpoint."""
    with contextlib.suppress(OSError):
        of_run, _ = split(f"{checkpoint.rstrip('/')}/checkpoints/any")
        if names := of_run.names():
            return f"a run's folder, not a checkpoint; its newest is {of_run.where(names[-1])}"
    return f"not a complete checkpoint: {reason}"


def _examine_share(store: Store, name: str, rank: int, world_size: int) -> Manifest | Fault | str:
    try:
        with store.open(name, MANIFEST_FILE) as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            return f"{MANIFEST_FILE} has more than {MOST_BYTES:,} bytes"
        manifest = decode(text, name)
        for file_name in sorted(manifest.files)[rank::world_size]:
            if reason := difference(store, name, file_name, manifest.files[file_name]):
                return reason
    except Fault as fault:
        return fault
    except Damage as damage:
        return str(damage)
    except OSError as error:
        return f"{error.filename or name}: {error.strerror or error}"
    return manifest
