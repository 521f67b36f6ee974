"""The job file's volumes: the data set, the run folder, and any other.

render.py job.yaml --set 'volumes=[{name: scratch, path: /scratch, ephemeral: {size: 1Ti}}]'
"""

import re
import typing
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from k8s.base.model import DataKey, DnsLabel, HostPath, Image, Model, Size, Subdomain

# What the pod has already.
TAKEN = ("/", "/dev/shm", "/tmp", "/data", "/out", "/code", "/etc/muster")  # noqa: S108

TAKEN_NAMES = ("shm", "tmp", "data", "out", "code", "git", "git-user", "topology", "job-file")

_ACCESS = Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]


class Claim(Model):
    """A PersistentVolumeClaim that is made with the job."""

    size: Size = Field(description="how large, e.g. 500Gi")
    storage_class: Subdomain | None = Field(
        None, description="name of a StorageClass (default: the cluster's)"
    )
    access_mode: _ACCESS = Field(
        "ReadWriteMany", description="ReadWriteMany where several nodes mount it"
    )


class Scratch(Model):
    """A volume of each pod's own, made and deleted with it, e.g. of local NVMe."""

    size: Size = Field(description="how large, e.g. 1Ti")
    storage_class: Subdomain | None = Field(
        None, description="name of a StorageClass (default: the cluster's)"
    )


class Csi(Model):
    """A volume that a CSI driver makes for the pod."""

    driver: Subdomain = Field(description="the driver's name, e.g. gcsfuse.csi.storage.gke.io")
    attributes: dict[str, str] = Field({}, description="what the driver is told")
    secret: Subdomain | None = Field(None, description="name of a Secret for the driver")
    read_only: bool = Field(False, description="mounted read-only")


def _bucket(text: str) -> str:
    if not re.fullmatch(r"(s3|gs|hf)://[A-Za-z0-9][-._A-Za-z0-9]*(/[-._=@A-Za-z0-9/]*)?", text):
        raise ValueError(
            "must be s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or hf://OWNER/DATASET[@REVISION]"
        )
    return text


class Pull(Model):
    """What every pod copies before the trainer starts."""

    source: Annotated[str, AfterValidator(_bucket)] = Field(
        description="s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or hf://OWNER/DATASET[@REVISION]"
    )
    size: Size = Field(description="room for it in each pod, e.g. 100Gi")
    secret: Subdomain | None = Field(
        None,
        description="name of a Secret whose every key is a variable for the copy, "
        "e.g. AWS_ACCESS_KEY_ID (default: the machine's own right)",
    )
    image: Image | None = Field(
        None, description="image with `aws`, `gcloud` or `hf` (default: one for the source)"
    )


class Kept(Model):
    """Sources of a volume that are there before the job and after it."""

    pvc: Subdomain | None = Field(None, description="name of a PersistentVolumeClaim")
    host_path: HostPath | None = Field(None, description="folder on every machine")
    csi: Csi | None = Field(None, description="a CSI driver's volume, e.g. a bucket")


class DataVolume(Kept):
    """Where the data set is: one of these."""

    pull: Pull | None = Field(None, description="copied by each pod before it starts")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        check_one(self, DataVolume)
        return self


class CheckpointVolume(Kept):
    """Where the run folder is kept: one of these."""

    claim: Claim | None = Field(None, description="a PersistentVolumeClaim made with the job")
    empty_dir: Size | None = Field(None, description="size of a folder that is lost with its pod")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        check_one(self, CheckpointVolume)
        return self


class Source(Kept):
    """Sources of a volume: one of these."""

    claim: Claim | None = Field(None, description="a PersistentVolumeClaim made with the job")
    ephemeral: Scratch | None = Field(None, description="each pod's own, e.g. local NVMe")
    empty_dir: Size | None = Field(None, description="size of a folder that is lost with its pod")
    config_map: Subdomain | None = Field(None, description="name of a ConfigMap")
    secret: Subdomain | None = Field(None, description="name of a Secret")


class Volume(Source):
    """A folder of the trainer's container, and where its content is: one of the sources."""

    name: DnsLabel = Field(description="the volume's name")
    path: HostPath = Field(description="where the trainer sees it")
    read_only: bool = Field(False, description="mounted read-only")
    sub_path: DataKey | None = Field(None, description="only this file or folder of it")

    @model_validator(mode="after")
    def _check(self) -> typing.Self:
        check_one(self, Source)
        return self


def check_one(volume: Model, sources: type[Model]) -> None:
    """Refuse a volume with no source or several. Raises ValueError."""
    fields = sources.model_fields.items()
    given = [str(field.alias) for name, field in fields if getattr(volume, name) is not None]
    if len(given) != 1:
        choices = ", ".join(str(field.alias) for _, field in fields)
        raise ValueError(f"must have exactly one of {choices}; has {', '.join(given) or 'none'}")


def check_volumes(volumes: list[Volume]) -> None:
    """Refuse names and paths that are taken. Raises ValueError."""
    names, paths = set(TAKEN_NAMES), set(TAKEN)
    for index, one in enumerate(volumes):
        path = one.path.rstrip("/") or "/"
        for key, value, taken in (("name", one.name, names), ("path", path, paths)):
            if value in taken:
                raise ValueError(f"volumes[{index}].{key}={value!r}: taken; choose another")
            taken.add(value)
