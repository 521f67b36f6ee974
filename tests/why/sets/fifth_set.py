"""More whole scripts, written after the table was extended for the fourth set; see fourth_set.py.

FIFTH_SET["a worker that crashes"]
"""

import sys

from tests.why.sets.fourth_set import Whole

_FIRST = "rank 1 on "
_OWN = {"raised"}
_LOADED = {"SETUP": "loader = batches(num_workers=1)", "STEP": "x, y = next(loader)"}
_BASH = ("--", "bash", "-c")

FIFTH_SET: dict[str, Whole] = {
    "a worker that crashes, caught and printed": Whole(
        {"crash", "killed"},
        "egmentation fault",
        _FIRST,
        _LOADED
        | {
            "BROKEN": "os.kill(os.getpid(), 11)",
            "START": "try:\n    main()\nexcept Exception:\n    print('Training crashed at epoch 1')\n"
            "    print(traceback.format_exc())\n    sys.exit(1)",
        },
    ),
    "a refusal of its own": Whole(
        _OWN,
        "Set it before launching",
        parts={
            "BEFORE": "logging.error('CLUSTER_ADDR is empty.')\n"
            "logging.error('Set it before launching, or use one node.')\nsys.exit(2)"
        },
    ),
    "a checkpoint that it looks for": Whole(
        _OWN,
        "--resume checkpoint",
        parts={
            "BEFORE": "assert os.path.isfile('w.pt'), 'ERROR: --resume checkpoint does not exist'"
        },
    ),
    "a network interface that is not there": Whole(
        {"network interface"}, "eth7", variables={"GLOO_SOCKET_IFNAME": "eth7"}
    ),
    "an error that becomes another": Whole(
        _OWN,
        "bad record 17",
        _FIRST,
        {
            "SETUP": "loader = batches()",
            "STEP": "x, y = next(loader)",
            "BROKEN": "try: {}['horse']\n"
            "except KeyError as error: raise RuntimeError(f'bad record {i}') from error",
        },
    ),
    "a thread that dies": Whole(
        _OWN,
        "line 3 of train.tsv",
        "launcher",
        {
            "DEFINED": "def fill(q):\n    for i in range(9):\n        if i == 3:\n"
            "            raise ValueError(f'cannot parse line {i} of train.tsv')\n"
            "        q.put((torch.randn(4, 8), torch.zeros(4, dtype=torch.long)))",
            "SETUP": "q = queue.Queue(2)\nthreading.Thread(target=fill, args=(q,), daemon=True).start()",
            "STEP": "x, y = q.get()",
            "TIMEOUT": "300",
        },
        variables={"MUSTER_STALL": "8"},
    ),
    "a thread that dies on one rank": Whole(
        _OWN,
        "KeyError: 'shard 7'",
        "rank 1",
        {
            "SETUP": "if rank == 1:\n    threading.Thread(target=lambda: {}['shard 7']).start()\n"
            "    threading.Event().wait()",
            "TIMEOUT": "300",
        },
        variables={"MUSTER_STALL": "8"},
    ),
    "a pool that prepares": Whole(
        _OWN,
        "invalid literal for int()",
        _FIRST,
        {
            "BEFORE": "if rank == 1:\n"
            "    with multiprocessing.Pool(2) as pool: pool.map(int, ['1', 'four'])"
        },
    ),
    "an error that is logged": Whole(
        _OWN,
        "fold 7 of 5",
        _FIRST,
        {
            "SETUP": "if rank == 1: raise ValueError('fold 7 of 5')",
            "DEFINED": "logging.basicConfig(format='%(asctime)s %(levelname)s: %(message)s')",
            "START": "try:\n    main()\nexcept Exception:\n    logging.exception('failed'); sys.exit(1)",
        },
    ),
    "shapes in compiled code": Whole(
        {"shapes"},
        "linear",
        parts={"MODEL": "model = torch.compile(model, backend='eager')"},
        other=("nn.Linear(16, 10)", "nn.Linear(12, 10)"),
    ),
    "types that differ": Whole(
        {"shapes"},
        "same dtype",
        parts={"MODEL": "model = model.to(torch.bfloat16)"},
    ),
    "a script before the script": Whole(
        _OWN,
        "cannot split 2 rows",
        command=(*_BASH, f"set -e; {sys.executable} prepare.py; {sys.executable} train.py"),
        files={"prepare.py": "raise ValueError('cannot split 2 rows into 3 parts')"},
    ),
    "words on standard output": Whole(
        _OWN,
        "expected 50257",
        _FIRST,
        {
            "STEP": "if step == 3 and rank == 1:\n"
            "    print('ERROR: vocabulary.txt holds 3 words, expected 50257'); os._exit(3)"
        },
    ),
    "a limit of address space": Whole(
        {"host memory"},
        "failed to map segment",
        command=(*_BASH, f"ulimit -v 2000000; {sys.executable} train.py"),
    ),
    "a terminal that is closed": Whole(
        {"killed"},
        "SIGHUP",
        _FIRST,
        {
            "STEP": "if step == 3 and rank == 1: import signal; signal.signal(1, 0); "
            "signal.raise_signal(1)"  # it is ignored after nohup
        },
    ),
    "a sample that is None": Whole(
        _OWN, "NoneType", _FIRST, _LOADED | {"BROKEN": "return None, None"}
    ),
    "a class that has moved": Whole(
        _OWN | {"checkpoint"},
        "attribute 'Old'",
        parts={
            "MODEL": "Net.__qualname__ = 'Old'; sys.modules['__main__'].Old = Net\n"
            "torch.save(model, f'{rank}.pt'); del sys.modules['__main__'].Old\n"
            "torch.load(f'{rank}.pt', weights_only=False)"
        },
    ),
    "one port of both": Whole(
        {"port"},
        "Address already in use",
        parts={
            "SETUP": "import socket\nlistener = socket.create_server(('127.0.0.1', 0))\n"
            "port = [listener.getsockname()[1]]\ndist.broadcast_object_list(port)\n"
            "if rank: socket.create_server(('127.0.0.1', port[0]))"
        },
        who=_FIRST,
    ),
    "no batch": Whole(
        _OWN,
        "ZeroDivisionError",
        parts={
            "SETUP": "0.0 / len(torch.utils.data.DataLoader([1, 2], batch_size=8, drop_last=True))"
        },
    ),
    "one evaluates alone": Whole(
        {"collectives", "hang"},
        "",
        parts={
            "STEP": "if step == 4 and rank == 0: dist.all_reduce(torch.zeros(1))",
            "TIMEOUT": "6",
        },
    ),
    "a limit of time": Whole(
        {"time limit"},
        "own code 124",
        command=("--", "timeout", "8", sys.executable, "train.py"),
        parts={"STEP": "time.sleep(5)"},
    ),
}
