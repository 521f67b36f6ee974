"""Faults that were written after the table was extended for second_set.py; see held_out.py.

THIRD_SET["a file that is too large"]

At the first try 16 of the 20 were right; this led to five patterns.
"""

from tests.why.scripts import Script

THIRD_SET: dict[str, tuple[set[str], Script]] = {
    "a directory in place of a file": (
        {"file"},
        Script("open('/tmp').read()", "/tmp"),
    ),
    "a half precision that the CPU lacks": (
        {"shapes", "raised"},
        Script("import torch\ntorch.linalg.inv(torch.eye(3).half())", "Half"),
    ),
    "a graph that is gone": (
        {"autograd"},
        Script(
            "import torch\nx = torch.ones(1, requires_grad=True)\ny = (x * x).sum()\n"
            "y.backward(); y.backward()",
            "second time",
        ),
    ),
    "a pipe that nobody reads": (
        {"raised", "crash", "killed", "lost peer"},
        Script(
            "import signal\nsignal.signal(signal.SIGPIPE, signal.SIG_DFL)\n"
            "read, write = os.pipe(); os.close(read); os.write(write, b'x')",
            "SIGPIPE",
        ),
    ),
    "an archive that is cut off": (
        {"content"},
        Script(
            "import tarfile\nopen('shard.tar', 'wb').write(b'\\0' * 100)\ntarfile.open('shard.tar')",
            "ReadError",
        ),
    ),
    "a file that is too large": (
        {"full disk"},
        Script(
            "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (9999, 9999))\n"
            "with open('weights.bin', 'wb') as file:\n    file.write(b'0' * 99999)",
            "File too large",
        ),
    ),
    "an abort in a library of C++": (
        {"crash"},
        Script(
            "import ctypes\nlibrary = ctypes.CDLL(None)\nlibrary.free(ctypes.c_void_p(12345678))",
            "SIG",
        ),
    ),
    "a server that answers no": (
        {"credentials"},
        Script(
            "import http.server, threading, urllib.request\n"
            "class No(http.server.BaseHTTPRequestHandler):\n"
            "    def do_GET(self): self.send_error(403)\n"
            "server = http.server.HTTPServer(('127.0.0.1', 0), No)\n"
            "threading.Thread(target=server.serve_forever, daemon=True).start()\n"
            "urllib.request.urlopen(f'http://127.0.0.1:{server.server_port}/weights.pt')",
            "403",
        ),
    ),
    "a certificate that is not trusted": (
        {"download"},
        Script(
            "import ssl\nraise ssl.SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] "
            "certificate verify failed: self-signed certificate in certificate chain')",
            "CERTIFICATE_VERIFY_FAILED",
        ),
    ),
    "a column that the table lacks": (
        {"raised", "data"},
        Script("import csv\nnext(csv.DictReader(['a,b', '1,2']))['label']", "KeyError: 'label'"),
    ),
    "a module that needs another": (
        {"package"},
        Script(
            "open('helper.py', 'w').write('import flash_attn_2_cuda')\n"
            "sys.path.insert(0, os.getcwd())\nimport helper",
            "flash_attn_2_cuda",
        ),
    ),
    "a shared library that is missing": (
        {"package", "file"},
        Script("import ctypes\nctypes.CDLL('libcudnn.so.99')", "libcudnn.so.99"),
    ),
    "an optimiser of other parameters": (
        {"checkpoint"},
        Script(
            "import torch\none = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=1)\n"
            "two = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1)\n"
            "one.load_state_dict(two.state_dict())",
            "parameter group",
        ),
    ),
    "a setting that is no number": (
        {"arguments"},
        Script(
            "import argparse\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('--lr', type=float)\nparser.parse_args(['--lr', 'fast'])",
            "invalid float value",
        ),
    ),
    "a queue that stays empty": (
        {"raised"},
        Script(
            "import queue\nqueue.Queue().get(timeout=1)",
            "_queue.Empty",
        ),
    ),
    "a label outside the classes": (
        {"shapes"},
        Script(
            "import torch\ntorch.nn.functional.cross_entropy(torch.zeros(1, 3), torch.tensor([5]))",
            "Target 5",
        ),
    ),
    "a batch of one under batch norm": (
        {"shapes"},
        Script(
            "import torch\ntorch.nn.BatchNorm1d(3)(torch.ones(1, 3))",
            "more than 1 value per channel",
        ),
    ),
    "an anomaly in the backward pass": (
        {"diverged"},
        Script(
            "import torch\ntorch.autograd.set_detect_anomaly(True)\n"
            "x = torch.zeros(1, requires_grad=True)\n(torch.sqrt(x) * 0).sum().backward()",
            "returned nan",
        ),
    ),
    "a seed out of range": (
        {"raised"},
        Script("import numpy\nnumpy.random.seed(-1)", "Seed must be"),
    ),
    "a device that is not this one": (
        {"no devices"},
        Script("import torch\ntorch.zeros(1).to('cuda:7')", "NVIDIA driver"),
    ),
}
