"""What happens in a pod before the trainer starts: code from git, data from a bucket, setup commands.

Each is an init container, so the first command that fails fails the pod. A folder that travels with the
job needs none: the launcher unpacks it.

render.py job.yaml --set 'code={git: "https://github.com/me/models", revision: 4f2c1e...}'
"""

import re
import typing
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from k8s.base.model import Image, Model, Subdomain
from k8s.base.names import matching
from k8s.jobfile.volumes import Pull

# Where the pod has the code; what setup installs with pip lies below it.
CODE = "/code"
PACKAGES = f"{CODE}/.packages"
# Where the pod has the archive of a folder.
ARCHIVE = "/muster-code/code.tar.gz"
_SECRET = "/etc/git-secret"  # noqa: S105  # a folder
_GIT_IMAGE = "docker.io/alpine/git:2.49.1"

# For any sh, such as Debian's, which knows no pipefail. If a pod is set up again, it runs again, on what
# is there. The repository and the revision come from the environment: no value becomes syntax. The
# credential helper reads files of the Secret: nothing secret is on a command line or in the environment.
GIT = f"""set -eu
if [ -e {_SECRET}/ssh-privatekey ]; then
    export GIT_SSH_COMMAND='ssh -i {_SECRET}/ssh-privatekey -o IdentitiesOnly=yes \
-o StrictHostKeyChecking=yes -o UserKnownHostsFile={_SECRET}/known_hosts'
elif [ -e {_SECRET}/password ]; then
    git config --global credential.helper '!f() {{ \
if [ -e {_SECRET}/username ]; then echo "username=$(cat {_SECRET}/username)"; \
else echo username=git; fi; echo "password=$(cat {_SECRET}/password)"; }}; f'
fi
# The volume is root's, with the pod's group.
git config --global --add safe.directory "$CODE_FOLDER"
git init --quiet "$CODE_FOLDER"
cd "$CODE_FOLDER"
git config remote.origin.url "$CODE_REPOSITORY"
git fetch --quiet --depth 1 origin "$CODE_REVISION"
git checkout --quiet --force --detach FETCH_HEAD
echo "code: $(git rev-parse HEAD)"
"""

_ADDRESS = (
    "must be https://HOST[:PORT]/PATH, ssh://USER@HOST[:PORT]/PATH or USER@HOST:PATH, with no password "
    "in it"
)
_form = matching(
    r"https://[^\s@]+|ssh://[^\s:/]+@[^\s]+|[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^\s:]+", _ADDRESS
)


def _repository(text: str) -> str:
    try:
        if urlsplit(_form(text)).port != 0:
            return text
    except ValueError:
        pass
    raise ValueError(_ADDRESS)


_revision = matching(
    r"(?!.*\.\.)[A-Za-z0-9][-._/A-Za-z0-9]*", "must be a commit, a tag or a branch"
)
_PATH_IN_GIT = re.compile(r"[A-Za-z0-9_][-._/A-Za-z0-9]*")


class Code(Model):
    """Code at /code, on PYTHONPATH: a git repository, or a folder that travels with the job."""

    git: Annotated[str, AfterValidator(_repository)] | None = Field(
        None, description="the repository's address; without it `path` travels with the job"
    )
    revision: Annotated[str, AfterValidator(_revision)] | None = Field(
        None, description="the commit; a tag or a branch works, but may change"
    )
    path: str | None = Field(
        None,
        min_length=1,
        description="without git: a folder whose files travel with the job, relative to the job file; "
        "with git: a folder in the repository to add to PYTHONPATH",
    )
    secret: Subdomain | None = Field(
        None,
        description="name of a Secret with password (a token works) and username for https, or "
        "ssh-privatekey and known_hosts for ssh",
    )
    image: Image = Field(_GIT_IMAGE, description="image with git and a shell")
    via: Literal["configMap", "pvc"] = Field(
        "configMap",
        description="how a folder travels: in a ConfigMap, up to 900 KiB, or on a claim, up to 256 MiB",
    )
    pvc: Subdomain | None = Field(
        None,
        description="with `via: pvc`, the PersistentVolumeClaim to which `python -m k8s submit` copies "
        "the folder (default: checkpoints.pvc)",
    )

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        if self.git is None:
            given = sorted(self.model_fields_set - {"git", "path", "via", "pvc"})
            if given:
                raise ValueError(
                    f"code.{given[0]}: only with code.git; set both, or leave this out"
                )
            if self.path is None:
                raise ValueError(
                    "code: has neither git nor path; set code.git, or code.path for a folder here"
                )
            if self.pvc is not None and self.via != "pvc":
                raise ValueError(
                    f"code.pvc={self.pvc!r}: only with code.via=pvc; set both, or leave this out"
                )
            return self
        if given := sorted(self.model_fields_set & {"via", "pvc"}):
            raise ValueError(
                f"code.{given[0]}: not with code.git, only for a folder; leave out one of them"
            )
        if self.revision is None:
            raise ValueError("code.revision: missing; it is the commit to check out")
        if self.path is not None and not _PATH_IN_GIT.fullmatch(self.path):
            raise ValueError(
                f"code.path={self.path!r}: must be a folder in the repository, e.g. src"
            )
        if self.ssh and self.secret is None:
            raise ValueError("code.secret: missing; ssh needs ssh-privatekey and known_hosts")
        return self

    @property
    def ssh(self) -> bool:
        return self.git is not None and not self.git.startswith("https://")

    @property
    def port(self) -> int:
        """The port of the repository's server."""
        return urlsplit(self.git or "").port or (22 if self.ssh else 443)

    @property
    def travels(self) -> bool:
        """Whether it is a folder of this machine."""
        return self.git is None

    @property
    def python_path(self) -> str:
        return f"{PACKAGES}:{CODE}{f'/{self.path}' if self.git and self.path else ''}"


@dataclass(frozen=True)
class Step:
    """An init container. `whole`: with the trainer's environment and volumes, not only its own.

    `mounts` are names of volumes with their paths; `secret` has its keys as variables.
    """

    name: str
    image: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    mounts: tuple[dict[str, object], ...] = ()
    secret: str | None = None
    whole: bool = False


_IMAGES = {
    "s3": "docker.io/amazon/aws-cli:2.27.0",
    "gs": "gcr.io/google.com/cloudsdktool/google-cloud-cli:562.0.0-slim",
    "hf": "ghcr.io/astral-sh/uv:0.8.22-python3.12-bookworm-slim",
}

# The packages come from the index, each with the hash that `make lock` has written down.
HUB = """set -eu
uv venv --quiet --clear /tmp/hub
printenv HUB_LOCK | uv pip install --quiet --python /tmp/hub/bin/python --require-hashes -r -
export PATH="/tmp/hub/bin:$PATH"
exec "$@"
"""
# The commands may need the code before the launcher unpacks it.
_UNPACK = (
    'echo "$MUSTER_CODE_SHA256  $MUSTER_CODE" | sha256sum -c',
    'tar -xzf "$MUSTER_CODE"',
)


def steps(
    *, code: Code | None, pull: Pull | None, setup: list[str], image: str, data: str
) -> Iterator[Step]:
    """Yield what runs before the trainer, in order."""
    if code is not None and code.git is not None:
        yield _clone(code, code.git, code.revision or "")
    if pull is not None:
        yield _copy(pull, data)
    if setup:
        unpack = _UNPACK if code is not None and code.travels else ()
        script = "\n".join(["set -euo pipefail", f"cd {CODE}", *unpack, *setup, ""])
        environment = {"PIP_TARGET": PACKAGES}
        yield Step("setup", image, ("bash", "-c", script), environment, whole=True)


def _clone(code: Code, repository: str, revision: str) -> Step:
    mounts: list[dict[str, object]] = [{"name": "code", "mountPath": CODE}]
    if code.secret is not None:
        mounts.append({"name": "git", "mountPath": _SECRET, "readOnly": True})
    if code.ssh:
        # ssh refuses a user that /etc/passwd does not know.
        passwd = {"name": "git-user", "mountPath": "/etc/passwd", "subPath": "passwd"}
        mounts.append(passwd | {"readOnly": True})
    environment = {
        "CODE_FOLDER": CODE,
        "CODE_REPOSITORY": repository,
        "CODE_REVISION": revision,
        "GIT_TERMINAL_PROMPT": "0",
    }
    return Step("code", code.image, ("sh", "-c", GIT), environment, tuple(mounts))


def _copy(pull: Pull, data: str) -> Step:
    scheme, _, rest = pull.source.partition("://")
    environment = {"CLOUDSDK_CONFIG": "/tmp/gcloud"} if scheme == "gs" else {}  # noqa: S108
    if scheme == "s3":
        command = ["aws", "s3", "sync", "--only-show-errors", pull.source, data]
    elif scheme == "gs":
        command = ["gcloud", "storage", "rsync", "--recursive", pull.source, data]
    else:
        name, _, revision = rest.partition("@")
        command = ["hf", "download", name, "--repo-type", "dataset", "--local-dir", data]
        command += ["--revision", revision] if revision else []
        if pull.image is None:
            command = ["sh", "-c", HUB, "sh", *command]
            environment["HUB_LOCK"] = hub_lock()
    return Step(
        "data",
        pull.image or _IMAGES[scheme],
        tuple(command),
        environment,
        ({"name": "data", "mountPath": data},),
        pull.secret,
    )


def hub_lock() -> str:
    """Return the locked packages of what downloads from hf://."""
    return Path(__file__).with_name("hub.txt").read_text(encoding="ascii")


def warnings(code: Code | None) -> Iterator[str]:
    if code is not None and code.git and not re.fullmatch(r"[0-9a-f]{40}", code.revision or ""):
        yield f"code.revision: {code.revision} may change; write a commit, 40 digits"
