"""The environment that all nodes share: the trainer's settings, NCCL's, and the job file's own.

render.py job.yaml --plan --json
"""

from k8s.base import quantity
from k8s.base.errors import config_error
from k8s.jobfile import code, nccl
from k8s.jobfile.spec import JobSpec
from k8s.plan.launcher import Launcher, RunsIn
from trainer.config.contract import DEFAULT_PORT
from trainer.config.environment import environment_of, variable
from trainer.config.settings import Settings


def build_environment(
    spec: JobSpec, settings: Settings, launcher: Launcher, *, procs: int, out: str
) -> dict[str, str]:
    """Return the variables that are the same on every node; templates add paths and PET_*."""
    paths = (variable("data"), variable("out"))
    environment = {k: v for k, v in environment_of(settings).items() if k not in paths}
    if spec.resources.gpu and spec.run is None and "devices" not in spec.trainer:
        # The preflight checks that the devices are there. Not on a developer's own machine (`local`).
        whole = spec.most_nodes if launcher.runs_in is RunsIn.CONTAINER else 1
        if launcher.runs_in is not RunsIn.PROCESS:
            environment[variable("devices")] = str(whole * spec.resources.gpu)
    if spec.resources.gpu and launcher.runs_in is RunsIn.POD:
        environment |= nccl.environment(spec.nccl, out)
    if launcher.runs_in is RunsIn.POD:
        environment |= _metrics_and_tensorboard(spec, settings)
    if launcher.runs_in is not RunsIn.PROCESS and (spec.code is not None or spec.setup):
        own = spec.code.python_path if spec.code else f"{code.PACKAGES}:{code.CODE}"
        # An image of others may have a PYTHONPATH of its own, which the launcher puts behind this.
        environment["MUSTER_PYTHONPATH" if spec.run is not None else "PYTHONPATH"] = own
    if launcher.runs_in is not RunsIn.PROCESS:
        environment["HOME"] = "/tmp"  # noqa: S108  # the only writable folder of the pod's own
    if launcher.runs_in is RunsIn.POD and spec.resources.cpu is not None:
        # Only a request, which the entrypoint cannot see: it would count the whole machine's cores.
        threads = max(1, int(quantity.cores(spec.resources.cpu) / procs))
        environment["OMP_NUM_THREADS"] = str(threads)
    _check_port(spec, environment, launcher)
    for one in spec.env:
        before = environment.pop(one.name, None)
        if one.value is not None:
            # The code comes first, as it does before an image's own PYTHONPATH.
            both = one.name == "PYTHONPATH" and before
            environment[one.name] = f"{before}:{one.value}" if both else one.value
    return environment


def _check_port(spec: JobSpec, environment: dict[str, str], launcher: Launcher) -> None:
    """Refuse to serve metrics at the rendezvous port; on one machine the launcher takes a free port."""
    meets = launcher.runs_in in (RunsIn.POD, RunsIn.CONTAINERS)
    if meets and environment.get(variable("metrics_port")) == str(DEFAULT_PORT):
        key = "metrics.port" if spec.metrics else "trainer.metricsPort"
        raise config_error(f"{key}={DEFAULT_PORT}: the rendezvous uses this port; choose another")


def _metrics_and_tensorboard(spec: JobSpec, settings: Settings) -> dict[str, str]:
    """Return the settings with which the trainer serves metrics and writes TensorBoard's files."""
    writes = spec.tensorboard is not None and spec.run is None  # a program writes its own
    found = {variable("tensorboard"): "True"} if writes else {}
    if spec.metrics is not None:
        if settings.metrics_port not in (None, spec.metrics.port):
            raise config_error(
                f"trainer.metricsPort={settings.metrics_port}: metrics.port is {spec.metrics.port}; "
                "leave out trainer.metricsPort"
            )
        found[variable("metrics_port")] = str(spec.metrics.port)
    return found
