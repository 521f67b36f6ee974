"""The stand-in's only node: it starts each pod's container as processes, and says how they are.

A pod has a network namespace with an address of its own, finds the others by the names of their headless
Services, and is stopped with SIGTERM and, after its grace, SIGKILL. A pod has one container, which is
never restarted (the kit's are `Never`); a failed liveness probe ends it. Left out: limits of CPU and
memory, NetworkPolicies, the time that names take to spread, readiness and start-up probes, ports, init
containers, and scheduling: what is pending goes to this node, however much is asked for.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT
from tests.faults.hosts import Network
from tests.standin.image import container
from tests.standin.logs import Log
from tests.standin.names import named_by
from tests.standin.store import (
    Object,
    Refusal,
    Store,
    finished,
    now,
    path_of,
    with_condition,
)

NODE = "standin"


@dataclass
class Here:
    """A pod on this node. `code` is its container's exit code, `kill_at` when its grace is over."""

    pod: Object
    log: Log = field(default_factory=Log)
    address: str = ""
    thread: threading.Thread | None = None
    process: "subprocess.Popen[bytes] | None" = None
    started_at: str = ""
    code: int | None = None
    ended_at: str = ""
    grace: float | None = None
    stopped: bool = False
    kill_at: float = float("inf")
    probe_at: float = float("inf")
    probes_failed: int = 0
    told: str = ""

    @property
    def first(self) -> psutil.Process | None:
        """The container's process 1, once there is one."""
        if self.process is None or self.code is not None:
            return None
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self.process.pid)
            if parent.name() == "unshare":
                return next(iter(parent.children()), None)
        return None


class Kubelet:
    """Call `sync` again and again; `logs` serves the containers' logs."""

    def __init__(self, store: Store, folder: Path, net: Network) -> None:
        self.store = store
        self.folder = folder
        self.net = net
        self.pods: dict[str, Here] = {}
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self._lock = threading.Lock()

    def logs(self, pod: Object, query: dict[str, str]) -> Iterator[bytes]:
        here = self.pods.get(pod["metadata"]["uid"])
        name = pod["spec"]["containers"][0]["name"]
        if query.get("container", name) != name:
            raise Refusal(400, f"container {query['container']} is not valid for pod")
        if query.get("previous") == "true":
            raise Refusal(400, f'previous terminated container "{name}" not found')
        if here is None or not here.started_at:
            raise Refusal(400, f'container "{name}" is waiting to start: ContainerCreating')
        return here.log.read(query)

    def sync(self) -> None:
        """Start what is new, stop what is to end, and write down how each pod is."""
        held = {pod["metadata"]["uid"]: pod for pod in self.store.all("v1", "Pod")}
        for uid, pod in held.items():
            if uid in self.pods:
                self._look(self.pods[uid], pod)
            elif not finished(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._admit(pod)
        for uid, here in self.pods.items():
            if uid not in held and here.code is None:  # deleted at once: the least grace there is
                self._stop(here, 1.0)
        self._name()

    def close(self) -> None:
        """Kill every container, and wait until each is gone."""
        for here in self.pods.values():
            while here.thread and here.thread.is_alive():
                self._signal(here, signal.SIGKILL)
                here.thread.join(0.1)

    def _admit(self, pod: Object) -> None:
        """Take a pod to this node, unless it asks for a claim that is not there."""
        namespace = pod["metadata"]["namespace"]
        for volume in pod["spec"].get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            if claim and not self.store.get("v1", "PersistentVolumeClaim", namespace, claim):
                words = f'persistentvolumeclaim "{claim}" not found'
                status = dict(pod.get("status", {}), phase="Pending")
                status["conditions"] = [
                    {"type": "PodScheduled", "status": "False", "message": words}
                ]
                self.store.change(pod, status=status)
                return
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        pod = self.store.change(
            pod,
            spec=pod["spec"] | {"nodeName": NODE},
            status={
                "phase": "Pending",
                "startTime": now(),
                "conditions": with_condition([], "PodScheduled", "", ""),
                "containerStatuses": [self._container(pod, waiting, ready=False)],
            },
        )
        here = self.pods[pod["metadata"]["uid"]] = Here(pod)
        here.thread = threading.Thread(target=self._run, args=(here,), daemon=True)
        here.thread.start()

    def _run(self, here: Here) -> None:
        """Run a pod's container to its end, in a thread of its own."""
        uid = here.pod["metadata"]["uid"]
        folder = self.folder / "pods" / uid
        folder.mkdir(parents=True)
        with self._lock:
            host = self.net.host()
        here.address = host.address
        try:
            pod = here.pod | {"status": {"podIP": host.address}}
            namespace = here.pod["metadata"]["namespace"]
            one = container(pod, folder, self.folder / "claims" / namespace, self._hosts)
            here.process = subprocess.Popen(
                one.start(folder / "container.json", "ip", "netns", "exec", host.name),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            here.started_at = now()
            self._wake()
            assert here.process.stdout
            for line in here.process.stdout:
                here.log.add(line)
            code = here.process.wait()
        except Exception as error:  # noqa: BLE001  # a kubelet tells of it, and goes on
            here.log.add(f"stand-in: {error!r}".encode())
            here.started_at = here.started_at or now()
            code = 128
        here.log.end()
        with self._lock:
            self.net.drop(host)
        here.ended_at = now()
        here.code = 128 - code if code < 0 else code
        self._wake()

    def _wake(self) -> None:
        with self.store.lock:
            self.store.lock.notify_all()

    def _look(self, here: Here, pod: Object) -> None:
        """Bring a pod's status to what its container is, and its container to what the pod is."""
        here.pod = pod
        if here.code is not None:
            if here.told != "ended":
                here.told = "ended"
                pod = self._tell_end(here, pod)
            if "deletionTimestamp" in pod["metadata"]:
                self.store.delete(pod, grace=0)
            return
        if here.started_at and not here.told:
            here.told = "running"
            self._tell_start(here, pod)
        if "deletionTimestamp" in pod["metadata"]:
            self._stop(here, max(1.0, pod["metadata"]["deletionGracePeriodSeconds"]))
        elif time.monotonic() >= here.probe_at:
            self._probe(here, pod["spec"]["containers"][0])

    def _tell_start(self, here: Here, pod: Object) -> None:
        running = {"running": {"startedAt": here.started_at}}
        conditions = pod["status"]["conditions"]
        for kind in ("Initialized", "ContainersReady", "Ready"):
            conditions = with_condition(conditions, kind, "", "")
        self.store.change(
            pod,
            status=pod["status"]
            | {
                "phase": "Running",
                "podIP": here.address,
                "conditions": conditions,
                "containerStatuses": [self._container(pod, running, ready=True)],
            },
        )
        if probe := pod["spec"]["containers"][0].get("livenessProbe"):
            here.probe_at = time.monotonic() + probe.get("initialDelaySeconds", 0)

    def _tell_end(self, here: Here, pod: Object) -> Object:
        end = {
            "exitCode": here.code,
            "reason": "Error" if here.code else "Completed",
            "startedAt": here.started_at,
            "finishedAt": here.ended_at,
        }
        conditions = pod["status"]["conditions"]
        for kind in ("ContainersReady", "Ready"):
            conditions = with_condition(conditions, kind, "PodFailed", "", status="False")
        return self.store.change(
            pod,
            status=pod["status"]
            | {
                "phase": "Failed" if here.code else "Succeeded",
                "conditions": conditions,
                "containerStatuses": [self._container(pod, {"terminated": end}, ready=False)],
            },
        )

    @staticmethod
    def _container(pod: Object, state: Object, *, ready: bool) -> Object:
        name, image = (pod["spec"]["containers"][0][key] for key in ("name", "image"))
        return {"name": name, "image": image, "restartCount": 0, "ready": ready, "state": state}

    def _stop(self, here: Here, grace: float) -> None:
        """Ask a container to end, once; kill it when its grace is over, which only gets shorter."""
        if here.grace is None or grace < here.grace:
            here.grace = grace
            here.kill_at = min(here.kill_at, time.monotonic() + grace)
        if time.monotonic() >= here.kill_at:
            self._signal(here, signal.SIGKILL)
        elif not here.stopped:
            here.stopped = self._signal(here, signal.SIGTERM)

    @staticmethod
    def _signal(here: Here, number: signal.Signals) -> bool:
        """Send a signal to a container's process 1; False while it has none."""
        with contextlib.suppress(psutil.Error):
            if first := here.first:
                first.send_signal(number)
                return True
        if number is signal.SIGKILL and here.process and here.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(here.process.pid, number)
        return False

    def _probe(self, here: Here, spec: Any) -> None:
        """Run a liveness probe's command in the container, in a thread of its own."""
        probe = spec["livenessProbe"]
        here.probe_at = float("inf")

        def run() -> None:
            first = here.first
            if first is None:
                return
            with contextlib.suppress(psutil.Error):
                variables = [f"{name}={value}" for name, value in first.environ().items()]
                apart = [f"--{one}" for one in ("mount", "uts", "ipc", "net", "pid", "root")]
                enter = ["nsenter", f"--target={first.pid}", *apart, "--wd"]
                user = [f"--reuid={first.uids().real}", f"--regid={first.gids().real}"]
                become = ["setpriv", *user, "--clear-groups", "env", "-i", *variables]
                limit = probe.get("timeoutSeconds", 1)
                try:
                    told = subprocess.run(
                        [*enter, *become, *probe["exec"]["command"]],
                        capture_output=True,
                        timeout=limit,
                        check=False,
                    )
                    words = (told.stdout + told.stderr).decode(errors="replace")
                    failed = told.returncode != 0
                except subprocess.TimeoutExpired:
                    words, failed = f"not within {limit} s", True
                here.probes_failed = here.probes_failed + 1 if failed else 0
                if failed:
                    words = f"Liveness probe failed: {words}"
                    self.store.event(here.pod, "Unhealthy", words, kind="Warning")
                if here.probes_failed >= probe.get("failureThreshold", 3):
                    self._stop(here, here.pod["spec"].get("terminationGracePeriodSeconds", 30))
                here.probe_at = time.monotonic() + probe.get("periodSeconds", 10)

        threading.Thread(target=run, daemon=True).start()

    def _name(self) -> None:
        """Write the names that headless Services give to pods, which every container sees."""
        lines = ["127.0.0.1 localhost"]
        for service in self.store.all("v1", "Service"):
            lines += named_by(service, self._reachable())
        text = "".join(f"{line}\n" for line in lines)
        if text != self._hosts.read_text(encoding="utf-8"):
            with self._hosts.open("r+", encoding="utf-8") as file:  # in place: it is mounted
                file.write(text)
                file.truncate()

    def _reachable(self) -> Iterator[tuple[Object, str]]:
        """Yield the pods that have an address, and are not gone or another's by now, with it."""
        for here in self.pods.values():
            held = self.store.objects.get(path_of(here.pod), here.pod)["metadata"]["uid"]
            if here.address and here.code is None and held == here.pod["metadata"]["uid"]:
                yield here.pod, here.address
