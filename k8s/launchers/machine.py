"""What the launchers on this machine (local, docker, compose) have in common."""

from k8s.base.errors import config_error
from k8s.jobfile.spec import JobSpec
from k8s.plan.model import Plan

# What no machine has: nothing runs there before the trainer. A folder that travels is there already.
LACKED_BY_A_MACHINE = {
    "code": "nothing is cloned on this machine; clone it yourself, and name the folder in code.path",
    "setup": "nothing runs on this machine before the trainer; run the commands yourself",
}


def not_restarted(_: Plan) -> str:
    """Return what a machine does with a job that failed."""
    return "none; run the job again and it resumes"


def warnings_of_a_machine(spec: JobSpec) -> list[str]:
    """Return warnings about running a cluster's job on one machine."""
    warnings = []
    if spec.most_nodes > 1:
        warnings.append(f"nodes: the ranks of all {spec.most_nodes} nodes run on this machine")
    if spec.data and not spec.data.host_path:
        kind = next(key for key in ("pvc", "csi", "pull") if getattr(spec.data, key))
        warnings.append(f"data.{kind}: not on this machine; set TRAINER_DATA to a folder here")
    if spec.checkpoints and not (spec.checkpoints.host_path or spec.checkpoints.empty_dir):
        kind = next(key for key in ("pvc", "csi", "claim") if getattr(spec.checkpoints, key))
        warnings.append(f"checkpoints.{kind}: not on this machine; the run folder is in build/")
    if spec.volumes:
        names = ", ".join(one.name for one in spec.volumes)
        warnings.append(f"volumes: not on this machine; the trainer runs without {names}")
    given = {
        "nccl": spec.nccl.model_fields_set,
        "metrics": spec.metrics,
        "tensorboard": spec.tensorboard,
    }
    warnings += [f"{key}: ignored on this machine" for key, value in given.items() if value]
    if spec.pod_patch.spec:
        warnings.append("podPatch: ignored, because there is no pod on this machine")
    if spec.env_from:
        warnings.append("envFrom: not on this machine; the trainer runs without these variables")
    return warnings


def refuse_for_docker(spec: JobSpec) -> None:
    """Refuse what Docker cannot do. Raises Fault(64)."""
    resource = spec.resources.gpu_resource
    if spec.resources.gpu and resource != "nvidia.com/gpu":
        raise config_error(
            f"resources.gpuResource={resource!r}: docker supports NVIDIA GPUs only; use nvidia.com/gpu "
            "or another launcher"
        )
    paths: dict[str, object] = {f"trainer.{key}": spec.trainer.get(key) for key in ("data", "out")}
    for key, volume in (("data", spec.data), ("checkpoints", spec.checkpoints)):
        paths[f"{key}.hostPath"] = volume and volume.host_path
    for key, path in paths.items():
        if {",", '"'} & set(str(path)):
            raise config_error(
                f"{key}={path!r}: docker cannot mount a path with a comma or a quote"
            )
