"""The trainer and its peers as contenders: `muster(2, mode="ddp")`, `torchrun(2)`."""

from tests.bench.measure import PEERS, SCRIPTS, Contender


def muster(ranks: int = 1, **settings: object) -> Contender:
    """Return the trainer with its defaults, but without checkpoints: these have a separate row."""
    default = {"task": "tests.bench.peers.muster_task:Task", "steps": 10**7, "checkpoint_steps": 0}
    variables = {
        f"TRAINER_{name.upper()}": str(value)
        for name, value in (default | {"eval_steps": 0, "out": "run"} | settings).items()
    }
    module = ("-m", "trainer") if ranks == 1 else ("-m", "trainer.launch")
    return Contender(module, variables | {"PET_NPROC_PER_NODE": str(ranks)}, ranks)


def peer(name: str, **env: str) -> Contender:
    return Contender((str(SCRIPTS / f"{name}.py"),), env, python=PEERS)


def bare(**env: str) -> Contender:
    return Contender((str(SCRIPTS / "bare.py"),), env)


def torchrun(ranks: int, *, script: str = "bare", **env: str) -> Contender:
    options = ("--standalone", "--max-restarts", "1", "--nproc-per-node", str(ranks))
    command = ("-m", "torch.distributed.run", *options, str(SCRIPTS / f"{script}.py"))
    return Contender(command, env, ranks)
