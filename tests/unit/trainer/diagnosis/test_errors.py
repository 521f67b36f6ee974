"""Which error in a rank's last lines is the cause, if there are several or wrappers around it."""

import pytest

from trainer.diagnosis.diagnose import Diagnosis, diagnose, in_words
from trainer.diagnosis.errors import stuck
from trainer.diagnosis.signs import Sign

RAISED_AT = (
    'Traceback (most recent call last):\n  File "/job/train.py", line 3, in main\n    go()\n'
)
OWN = f"{RAISED_AT}ValueError: fold 7 of 5\n"
DURING = "\nDuring handling of the above exception, another exception occurred:\n\n"
DIRECT = "\nThe above exception was the direct cause of the following exception:\n\n"
LOST = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:3634\n"

# By name: the cause, a part of the evidence, and the lines.
LINES: dict[str, tuple[str, str, str]] = {
    "an error that was caught before": (
        "raised",
        "fold 7",
        f"{RAISED_AT}ModuleNotFoundError: No module named 'flash_attn'\nfalling back\n{OWN}",
    ),
    "an error that was logged before": (
        "raised",
        "fold 7",
        f"ERROR: cannot write to /root/.cache: Permission denied\n{OWN}",
    ),
    "a destructor at the end": (
        "raised",
        "fold 7",
        (
            f"{OWN}Exception ignored in: <function Loader.__del__ at 0x7f>\n{RAISED_AT}"
            "AssertionError: can only test a child process\n"
        ),
    ),
    "what Python ignores without a traceback": (
        "raised",
        "fold 7",
        f"Exception ignored in: 'loader.close'\nOSError: out of memory\n{OWN}",
    ),
    "a handler at the end": (
        "raised",
        "fold 7",
        f"{OWN}Error in atexit._run_exitfuncs:\n{RAISED_AT}BrokenPipeError: [Errno 32] Broken pipe\n",
    ),
    "a warning at the end": (
        "raised",
        "fold 7",
        f"{OWN}/lib/resource_tracker.py:254: UserWarning: 3 leaked objects: out of memory\n  warn()\n",
    ),
    "a message that cannot be logged": (
        "raised",
        "fold 7",
        (
            f"--- Logging error ---\n{RAISED_AT}TypeError: not all arguments converted\nCall stack:\n"
            f'  File "/job/a.py", line 5, in <module>\nMessage: "out of memory"\nArguments: (3,)\n{OWN}'
        ),
    ),
    "a warning before a quiet end": (
        "raised",
        "no such recipe",
        "/lib/a.py:3: UserWarning: may run out of memory\nno such recipe\n",
    ),
    "a collective while an error is handled": (
        "raised",
        "KeyError: 'horse'",
        f"{RAISED_AT}KeyError: 'horse'\n{DURING}{RAISED_AT}{LOST}",
    ),
    "an error because a peer was lost": (
        "lost peer",
        "closed by peer",
        f"{RAISED_AT}{LOST}{DIRECT}{RAISED_AT}RuntimeError: step 4 failed\n",
    ),
    "an error that becomes another": (
        "raised",
        "KeyError: 'horse', then RuntimeError: bad record 17",
        f"{RAISED_AT}KeyError: 'horse'\n{DIRECT}{RAISED_AT}RuntimeError: bad record 17\n",
    ),
    "a file that becomes an error": (
        "file",
        "a.jpg",
        (
            f"{RAISED_AT}FileNotFoundError: [Errno 2] No such file or directory: 'a.jpg'\n{DIRECT}"
            f"{RAISED_AT}RuntimeError: bad record 17\n"
        ),
    ),
    "a process of multiprocessing": (
        "raised",
        "KeyError: 'horse'",
        f"Process Process-1:\n{RAISED_AT}KeyError: 'horse'\n{RAISED_AT}RuntimeError: no result\n",
    ),
    "a process that was spawned": (
        "raised",
        "fold 7",
        (
            f"{RAISED_AT}torch.multiprocessing.spawn.ProcessRaisedException: \n\n"
            f"-- Process 1 terminated with the following error:\n{OWN}"
        ),
    ),
    "a thread": (
        "raised",
        "KeyError: 'horse'",
        f"Exception in thread Thread-1 (fill):\n{RAISED_AT}KeyError: 'horse'\n{RAISED_AT}_queue.Empty\n",
    ),
    "a worker of a loader": (
        "raised",
        "KeyError: 5",
        (
            f"{RAISED_AT}KeyError: Caught KeyError in DataLoader worker process 0.\nOriginal {RAISED_AT}"
            "KeyError: 5\n"
        ),
    ),
    "a worker that crashed": (
        "crash",
        "egmentation fault",
        (
            f"ERROR: Unexpected segmentation fault encountered in worker.\n{RAISED_AT}"
            "RuntimeError: DataLoader worker (pid(s) 12) exited unexpectedly\n"
        ),
    ),
    "a worker that ended while its samples were taken": (
        "lost worker",
        "Connection reset by peer",
        (
            f'{RAISED_AT}  File "/lib/multiprocessing/resource_sharer.py", line 86, in get_connection\n'
            "    c = Client(address, authkey=process.current_process().authkey)\n"
            "ConnectionResetError: [Errno 104] Connection reset by peer\n"
        ),
    ),
    "a group of errors": (
        "file",
        "shard-7.tar",
        (
            f"  + Exception Group {RAISED_AT.replace(chr(10), f'{chr(10)}  | ')}"
            "ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)\n"
            "  +-+---------------- 1 ----------------\n"
            f"    | {RAISED_AT.replace(chr(10), f'{chr(10)}    | ')}"
            "FileNotFoundError: [Errno 2] No such file or directory: '/data/shard-7.tar'\n"
            "    +------------------------------------\n"
        ),
    ),
    "torchrun in a rank": (
        "raised",
        "fold 7",
        (
            f"{OWN}{RAISED_AT}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n"
            "======\ntrain.py FAILED\nRoot Cause (first observed failure):\n"
        ),
    ),
    "torchrun and a rank that was killed": (
        "killed",
        "SIGKILL",
        (
            f"{RAISED_AT}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n======\n"
            "train.py FAILED\n  traceback : Signal 9 (SIGKILL) received by PID 12\n"
        ),
    ),
    "a checkpoint of all ranks": (
        "file",
        "__0_0.distcp",
        (
            f"{RAISED_AT}torch.distributed.checkpoint.api.CheckpointException: CheckpointException "
            f"ranks:dict_keys([0])\n{RAISED_AT}FileNotFoundError: [Errno 2] No file: '__0_0.distcp'\n"
        ),
    ),
    "a bar before it": ("raised", "fold 7", f"  0%|   | 0/10 [00:00<?, ?it/s]{OWN}"),
    "hydra": (
        "raised",
        "fold 7",
        f"Error executing job with overrides:\n{OWN}\nSet HYDRA_FULL_ERROR=1",
    ),
}


def diagnosed(text: str, ended: str = "ended with its own code 1 (exit 70)") -> Diagnosis:
    found = diagnose([Sign(ended, "logs/", "rank 1", 1.0, tuple(text.splitlines()))])
    assert found is not None
    return found


@pytest.mark.parametrize("name", LINES)
def test_of_several_errors_the_one_that_says_why_counts(name: str) -> None:
    cause, evidence, text = LINES[name]
    found = diagnosed(text)
    assert evidence in found.evidence
    assert found.cause.name == cause


def test_what_a_shell_does_not_find_is_named_beside_its_exit_code() -> None:
    found = diagnosed("sh: 1: pyhton: not found\n", "ended with its own code 127 (exit 70)")
    assert found.cause.name == "no script"
    assert "pyhton" in found.evidence


def test_a_name_that_torch_only_warns_of_is_why_the_ranks_did_not_meet() -> None:
    warning = "[W1 socket.cpp:767] [c10d] The IPv6 network addresses of (master-0, 29500) cannot be"
    warning += " retrieved (gai error: -2 - Name or service not known).\n"
    late = "DistNetworkError: The client socket has timed out after 15000ms while trying to connect"
    found = diagnosed(f"{warning}{RAISED_AT}{late}\n")
    assert found.cause.name == "name"
    assert "master-0" in found.evidence
    assert diagnosed(f"{warning}{OWN}").cause.name == "raised"


DUMP = "Fatal Python error: Aborted\n\nCurrent thread 0x7f (most recent call first):\n"
WAITING = f'{DUMP}  File "/lib/torch/autograd/graph.py", line 9 in _engine_run_backward\n'
READING = f'{DUMP}  File "/job/train.py", line 17 in <module>\n'
JOINING = f'{DUMP}  File "/lib/torch/distributed/distributed_c10d.py", line 4 in barrier\n'


@pytest.mark.parametrize(
    ("dumps", "found"),
    [
        ((WAITING, READING, JOINING), "rank 1"),
        ((WAITING, f"{WAITING}{READING}", "no dump"), "rank 1"),  # the newest error counts
        ((WAITING, JOINING), ""),
        ((READING, READING, WAITING), ""),
        ((READING,), ""),
    ],
)
def test_of_ranks_that_hang_the_one_that_does_not_wait_is_named(
    dumps: tuple[str, ...], found: str
) -> None:
    stacks = {f"rank {number}": dump.splitlines() for number, dump in enumerate(dumps)}
    assert stuck(stacks) == found


@pytest.mark.parametrize("twice", [("rank 0 on vm", "rank 0"), ("rank 0", "rank 0 on vm")])
def test_a_rank_is_named_once_with_its_host_and_without(twice: tuple[str, str]) -> None:
    signs = [
        Sign("lost a peer", "logs/", who, time)
        for time, who in enumerate(("rank 1 on vm", *twice, "rank 10"))
    ]
    found = diagnose(signs)
    assert found is not None
    assert in_words(found, job="job")[-1] == "then      lost peer: rank 0 on vm, rank 10"


def test_an_exception_of_cpp_counts_before_its_signal() -> None:
    text = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
    assert diagnosed(text, "Signal 6 (SIGABRT) (exit -6)").cause.name == "host memory"


def test_the_line_is_that_of_the_error_and_not_of_a_later_one() -> None:
    later = RAISED_AT.replace("line 3", "line 90")
    found = diagnosed(f"{OWN}Exception ignored in: <function a at 0x7f>\n{later}AssertionError\n")
    assert any("line 3, in main: go()" in line for line in in_words(found, job="job"))
