"""The job file's volumes: the data set, the run folder, and any other.

render.py job.yaml --set 'volumes=[{name: scratch, path: /scratch, ephemeral: {size: 1Ti}}]'
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from k8s.base.model import DataKey, DnsLabel, HostPath, Image, Model, OneOf, Size, Subdomain
from k8s.base.names import matching

# What the pod has already.
TAKEN = (
    *("/", "/dev/shm", "/tmp", "/data", "/out", "/code"),  # noqa: S108
    *("/etc/muster", "/muster", "/muster-code"),
)

TAKEN_NAMES = (
    *("shm", "tmp", "data", "out", "code", "git", "git-user", "topology", "job-file"),
    *("muster-launch", "muster-code"),
)

_ACCESS = Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]


class Claim(Model):
    """A PersistentVolumeClaim that is made with the job."""

    size: Size = Field(description="size, e.g. 500Gi")
    storage_class: Subdomain | None = Field(
        None, description="name of a StorageClass (default: the cluster's)"
    )
    access_mode: _ACCESS = Field(
        "ReadWriteMany", description="ReadWriteMany if several nodes mount it"
    )


class Scratch(Model):
    """A volume for each pod, made and deleted with it, e.g. of local NVMe."""

    size: Size = Field(description="size, e.g. 1Ti")
    storage_class: Subdomain | None = Field(
        None, description="name of a StorageClass (default: the cluster's)"
    )


class Csi(Model):
    """A volume that a CSI driver makes for the pod."""

    driver: Subdomain = Field(description="the driver's name, e.g. gcsfuse.csi.storage.gke.io")
    attributes: dict[str, str] = Field({}, description="options for the driver")
    secret: Subdomain | None = Field(None, description="name of a Secret for the driver")
    read_only: bool = Field(False, description="mounted read-only")


_BUCKETS = "s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or hf://OWNER/DATASET[@REVISION]"
_bucket = matching(
    r"(s3|gs|hf)://[A-Za-z0-9][-._A-Za-z0-9]*(/[-._=@A-Za-z0-9/]*)?", f"must be {_BUCKETS}"
)


class Pull(Model):
    """What every pod copies before the trainer starts."""

    source: Annotated[str, AfterValidator(_bucket)] = Field(description=_BUCKETS)
    size: Size = Field(description="space for the copy in each pod, e.g. 100Gi")
    secret: Subdomain | None = Field(
        None,
        description="name of a Secret whose keys are variables for the copy, e.g. AWS_ACCESS_KEY_ID "
        "(default: the rights of the pod or machine)",
    )
    image: Image | None = Field(
        None, description="image with `aws`, `gcloud` or `hf` (default: one for the source)"
    )


class Kept(OneOf):
    """Sources of a volume that exist before the job and after it."""

    pvc: Subdomain | None = Field(None, description="name of a PersistentVolumeClaim")
    host_path: HostPath | None = Field(None, description="folder on every machine")
    csi: Csi | None = Field(None, description="a CSI driver's volume, e.g. a bucket")


class DataVolume(Kept):
    """Where the data set is: one of these."""

    pull: Pull | None = Field(None, description="a source that each pod copies at its start")


class CheckpointVolume(Kept):
    """Where the run folder is kept: one of these."""

    claim: Claim | None = Field(None, description="a PersistentVolumeClaim made with the job")
    empty_dir: Size | None = Field(None, description="size of a folder that is lost with its pod")


class Volume(Kept):
    """A folder of the trainer's container, and where its content is: one of the sources."""

    one_of = (
        *("pvc", "host_path", "csi", "claim", "ephemeral"),
        *("empty_dir", "config_map", "secret"),
    )

    claim: Claim | None = Field(None, description="a PersistentVolumeClaim made with the job")
    ephemeral: Scratch | None = Field(None, description="a volume for each pod, e.g. local NVMe")
    empty_dir: Size | None = Field(None, description="size of a folder that is lost with its pod")
    config_map: Subdomain | None = Field(None, description="name of a ConfigMap")
    secret: Subdomain | None = Field(None, description="name of a Secret")

    name: DnsLabel = Field(description="the volume's name")
    path: HostPath = Field(description="mount path in the trainer's container")
    read_only: bool = Field(False, description="mounted read-only")
    sub_path: DataKey | None = Field(
        None, description="mount only this file or folder of the volume"
    )


def check_volumes(volumes: list[Volume], used: list[str]) -> None:
    """Refuse names and paths that are taken, and paths that other keys have used. Raises ValueError."""
    names, paths = set(TAKEN_NAMES), {*TAKEN, *used}
    for index, one in enumerate(volumes):
        path = one.path.rstrip("/") or "/"
        for key, value, taken in (("name", one.name, names), ("path", path, paths)):
            if value in taken:
                raise ValueError(f"volumes[{index}].{key}={value!r}: already used; choose another")
            taken.add(value)
