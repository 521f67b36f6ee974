"""Scripts that fail on rank 1, each in a way that the table of causes knows; rank 0 loses its peer.

SCRIPTS["port"].source
"""

from dataclasses import dataclass

# Rank 0 listens for rank 1, which is gone: as in a collective, it notices and fails soon after.
_START = """
import os, socket, sys, time
rank = int(os.environ["RANK"])
master = ("127.0.0.1", int(os.environ["MASTER_PORT"]) + 0)
if rank == 0:
    server = socket.create_server(("127.0.0.1", 0))
    open("port.new", "w").write(str(server.getsockname()[1]))
    os.rename("port.new", "port")
    connection, _ = server.accept()
    if not connection.recv(1):
        raise ConnectionResetError("Connection reset by peer")
while not os.path.exists("port"):
    time.sleep(0.01)
connection = socket.create_connection(("127.0.0.1", int(open("port").read())))
"""


@dataclass(frozen=True)
class Script:
    """What rank 1 does, and a part of the line that is to be shown as evidence."""

    source: str
    evidence: str
    arguments: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return _START + self.source


def _limited(resource: str, amount: int, then: str) -> str:
    return f"import resource\nresource.setrlimit(resource.{resource}, ({amount}, {amount}))\n{then}"


# By the name of the cause.
SCRIPTS = {
    "raised": Script("raise KeyError('label')", "KeyError: 'label'"),
    "package": Script("import no_such_package", "No module named 'no_such_package'"),
    "syntax": Script("exec('def f(:')", "SyntaxError"),
    "arguments": Script(
        "import argparse; argparse.ArgumentParser().parse_args()",
        "unrecognized arguments: --epoch 3",
        ("--epoch", "3"),
    ),
    "file": Script("open('/data/train.npy')", "/data/train.npy"),
    "permission": Script("os.getuid() or os.setuid(65534); open('/etc/shadow')", "/etc/shadow"),
    "killed": Script("os.kill(os.getpid(), 9)", "Signal 9 (SIGKILL)"),
    "crash": Script("import ctypes; ctypes.string_at(0)", "Signal 11 (SIGSEGV)"),
    "shared memory": Script(
        "import mmap\nfile = open('short', 'w+b'); file.truncate(4096)\n"
        "memory = mmap.mmap(file.fileno(), 4096); file.truncate(0); memory[0]",
        "Signal 7 (SIGBUS)",
    ),
    "port": Script(
        "one = socket.create_server(('127.0.0.1', 0)); socket.create_server(one.getsockname())",
        "Address already in use",
    ),
    # The new process imports the program, which takes the same port again.
    "worker start": Script(
        "import multiprocessing\ntaken = socket.socket()\n"
        "taken.bind(('127.0.0.1', int(os.environ.get('TAKEN', 0)))); taken.listen()\n"
        "os.environ['TAKEN'] = str(taken.getsockname()[1])\n"
        "worker = multiprocessing.get_context('spawn').Process(target=print)\n"
        "worker.start(); worker.join(); sys.exit(worker.exitcode)",
        "imported the program again: OSError: [Errno 98] Address already in use",
    ),
    "name": Script("socket.create_connection(('master.invalid', 29500))", "gaierror"),
    "full disk": Script(
        "with open('/dev/full', 'w') as file:\n    file.write('x')", "No space left on device"
    ),
    "too many files": Script(
        _limited("RLIMIT_NOFILE", 16, "files = [open('/dev/null') for _ in range(20)]"),
        "Too many open files",
    ),
    "host memory": Script(_limited("RLIMIT_AS", 10**9, "bytes(10**10)"), "MemoryError"),
    "download": Script(
        "import urllib.request\nurllib.request.urlopen('http://127.0.0.1:9/weights.pt')",
        "URLError",
    ),
    "checkpoint": Script(
        "import io, pickle\npickle.load(io.BytesIO(b'garbage'))", "UnpicklingError"
    ),
}
