"""Images by digest: `make lock` asks a registry, which is a server on this machine here."""

import hashlib
import json
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.conftest import ROOT, run_command

NAMING = ("docker/Dockerfile", "k8s/jobfile/code.py")


class Registry(BaseHTTPRequestHandler):
    """Has two images; for one of them it requires a token, as public registries do."""

    def do_HEAD(self) -> None:  # the name is that of http.server
        image = self.path.removeprefix("/v2/")
        asks = image.startswith("team/") and self.headers["Authorization"] != "Bearer let-me"
        known = image in ("team/git/manifests/2.49", "base/manifests/3.13-slim")
        self.send_response(401 if asks else 200 if known else 404)
        if asks:
            realm = f"http://{self.headers['Host']}/token"
            scope = "repository:team/git:pull"
            self.send_header(
                "WWW-Authenticate", f'Bearer realm="{realm}",service="here",scope="{scope}"'
            )
        elif known and "image.index" in self.headers["Accept"]:
            self.send_header("Docker-Content-Digest", digest(image))
        self.end_headers()

    def do_GET(self) -> None:
        right = self.path == "/token?service=here&scope=repository%3Ateam%2Fgit%3Apull"
        self.send_response(200 if right else 400)
        self.end_headers()
        self.wfile.write(json.dumps({"token": "let-me" if right else "no"}).encode())

    def log_message(self, *_: object) -> None:
        pass


def digest(image: str) -> str:
    return f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"


@contextmanager
def registry() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def run(*files: Path) -> subprocess.CompletedProcess[str]:
    return run_command([sys.executable, ROOT / "docker/digests.py", *files], timeout=60)


def test_each_image_gets_its_digest_and_an_old_one_goes(tmp_path: Path) -> None:
    with registry() as host:
        first, second = tmp_path / "Dockerfile", tmp_path / "code.py"
        first.write_text(f"ARG BASE={host}/base:3.13-slim\nFROM ${{BASE}}\n")
        second.write_text(
            f'A = "{host}/team/git:2.49@sha256:{"0" * 64}"\nB = "{host}/base:3.13-slim"\n'
        )
        done = run(first, second)
        assert (done.returncode, done.stdout) == (0, "2 images by digest\n"), done.stderr
        base = f"{host}/base:3.13-slim@{digest('base/manifests/3.13-slim')}"
        git = f"{host}/team/git:2.49@{digest('team/git/manifests/2.49')}"
        assert first.read_text() == f"ARG BASE={base}\nFROM ${{BASE}}\n"
        assert second.read_text() == f'A = "{git}"\nB = "{base}"\n'
        assert run(first, second).returncode == 0
        assert second.read_text() == f'A = "{git}"\nB = "{base}"\n'


@pytest.mark.parametrize(
    ("image", "words"), [("base:9", "404 Not Found"), ("team/other:1", "404 Not Found")]
)
def test_without_every_digest_nothing_is_written(image: str, words: str, tmp_path: Path) -> None:
    with registry() as host:
        text = f"FROM {host}/base:3.13-slim\nFROM {host}/{image}\n"
        (tmp_path / "a").write_text(text)
        done = run(tmp_path / "a")
        assert (done.returncode, done.stdout) == (69, "")
        assert done.stderr.startswith(f"digests: {host}/{image}: {words}")
        assert len(done.stderr.splitlines()) == 1
        assert (tmp_path / "a").read_text() == text


def test_a_registry_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("FROM 127.0.0.1:9/base:1\n")
    done = run(tmp_path / "a")
    assert done.returncode == 69
    assert len(done.stderr.splitlines()) == 1


def test_every_image_of_ours_is_found_and_make_lock_renews_it() -> None:
    pattern = runpy.run_path(str(ROOT / "docker/digests.py"))["_IMAGE"]
    found = [
        one[2].rpartition("/")[2]
        for name in NAMING
        for one in pattern.findall((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert found == ["python", "git", "aws-cli", "google-cloud-cli", "uv"]
    command = run_command(["make", "-n", "lock"], check=True).stdout
    assert f"docker/digests.py {' '.join(NAMING)}" in command
