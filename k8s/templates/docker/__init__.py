"""This machine, in the image: all ranks of all nodes in one container."""

from k8s.launchers import LACKED_BY_A_MACHINE, Launcher, RunsIn, warnings_of_a_machine
from k8s.plan import Plan
from k8s.spec import JobSpec
from trainer.exits import Exit, Fault


def _check(spec: JobSpec) -> list[str]:
    resource = spec.resources.gpu_resource
    if spec.resources.gpu and resource != "nvidia.com/gpu":
        raise Fault(
            Exit.CONFIG,
            f"resources.gpuResource={resource!r}: docker hands out NVIDIA GPUs only; use nvidia.com/gpu "
            "or another launcher",
        )
    for key, volume in (("data", spec.data), ("checkpoints", spec.checkpoints)):
        if volume and volume.host_path and {",", '"'} & set(volume.host_path):
            raise Fault(
                Exit.CONFIG,
                f"{key}.hostPath={volume.host_path!r}: docker mounts no path with a comma or a quote",
            )
    return warnings_of_a_machine(spec)


def _restarts(_: Plan) -> str:
    return "none; run it again and it resumes"


LAUNCHER = Launcher(
    name="docker",
    summary="one container on this machine",
    runs_in=RunsIn.CONTAINER,
    check=_check,
    restarts=_restarts,
    host=lambda _name, _node: "localhost",
    master=lambda _name: "localhost",
    lacks=LACKED_BY_A_MACHINE,
)
