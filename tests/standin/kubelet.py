"""The stand-in's only node: it runs each pod's container as processes and writes the pods' status.

A pod has a network namespace with its own address, finds other pods by the names of their headless
Services, and is stopped with SIGTERM and, after its grace period, SIGKILL. It has one container,
which is never restarted (the kit's are `Never`); a failed liveness probe ends it. Left out: limits of
CPU and memory, NetworkPolicies, the time that names take to spread, readiness and start-up probes,
ports, init containers, and scheduling: every pending pod comes to this node.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from tests.conftest import ROOT
from tests.faults.hosts import Network
from tests.standin.image import container
from tests.standin.logs import Log
from tests.standin.names import names_of
from tests.standin.objects import Object, deleted, finished, now, path_of, set_condition
from tests.standin.server import Query, Refusal, Server

NODE = "standin"


@dataclass
class _Running:
    """A pod on this node: its container's process, and `code` once that has ended."""

    pod: Object
    log: Log = field(default_factory=Log)
    address: str = ""
    thread: threading.Thread | None = None
    process: "subprocess.Popen[bytes] | None" = None
    started_at: str = ""
    code: int | None = None
    ended_at: str = ""
    written: str = ""  # the phase that its status has
    signalled: bool = False
    kill_at: float = float("inf")
    probe_at: float = float("inf")
    probes_failed: int = 0

    def first(self) -> psutil.Process | None:
        """Return the container's process 1, once there is one."""
        if self.process is None or self.code is not None:
            return None
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(self.process.pid)
            if parent.name() == "unshare":
                return next(iter(parent.children()), None)
        return None

    def signal(self, number: signal.Signals) -> bool:
        """Send a signal to the container's process 1; False while there is none."""
        with contextlib.suppress(psutil.Error):
            if first := self.first():
                first.send_signal(number)
                return True
        if number is signal.SIGKILL and self.process and self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)
        return False

    def stop(self, grace: float) -> None:
        """Send SIGTERM once, and SIGKILL when the grace period is over; it can only be shortened."""
        self.kill_at = min(self.kill_at, time.monotonic() + grace)
        if time.monotonic() >= self.kill_at:
            self.signal(signal.SIGKILL)
        elif not self.signalled:
            self.signalled = self.signal(signal.SIGTERM)


class Kubelet:
    """`sync` is called again and again; `log` serves the containers' logs."""

    def __init__(self, server: Server, folder: Path, network: Network) -> None:
        self.server = server
        self.folder = folder
        self.network = network
        self.running: dict[str, _Running] = {}  # by the pod's uid
        self._hosts = folder / "hosts"
        self._hosts.write_text("127.0.0.1 localhost\n", encoding="utf-8")
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Start new pods, stop those that are deleted, and write the status of each."""
        pods = {pod["metadata"]["uid"]: pod for pod in self.server.all("v1", "Pod")}
        for uid, pod in pods.items():
            if uid in self.running:
                self._update(self.running[uid], pod)
            elif not finished(pod) and not deleted(pod):
                self._admit(pod)
        for uid, one in self.running.items():
            if uid not in pods and one.code is None:
                one.stop(1.0)
        self._write_names()

    def log(self, path: str, query: Query) -> Iterator[bytes]:
        if path not in self.server.objects:
            raise Refusal(404, f"{path} not found")
        pod = self.server.objects[path]
        name, one = pod["spec"]["containers"][0]["name"], self.running.get(pod["metadata"]["uid"])
        if query.get("container", name) != name:
            raise Refusal(400, f"container {query['container']} is not valid for pod")
        if query.get("previous") == "true":
            raise Refusal(400, f'previous terminated container "{name}" not found')
        if one is None or not one.started_at:
            raise Refusal(400, f'container "{name}" is waiting to start: ContainerCreating')
        return one.log.read(query)

    def enter(self, path: str, command: list[str]) -> list[str]:
        """Return the command that runs another command in a pod's container."""
        if path not in self.server.objects:
            raise Refusal(404, f"{path} not found")
        one = self.running.get(self.server.objects[path]["metadata"]["uid"])
        with contextlib.suppress(psutil.Error):
            if one and (first := one.first()):
                return _in_container(first, command)
        raise Refusal(400, "container not found")

    def close(self) -> None:
        """Kill every container and wait until each is gone."""
        for one in self.running.values():
            while one.thread and one.thread.is_alive():
                one.signal(signal.SIGKILL)
                one.thread.join(0.1)

    def _admit(self, pod: Object) -> None:
        """Accept a pod on this node, unless a claim that it names is missing."""
        status: Object = {"phase": "Pending"}
        for volume in pod["spec"].get("volumes", []):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            namespace = pod["metadata"]["namespace"]
            if claim and not self.server.get("v1", "PersistentVolumeClaim", namespace, claim):
                message = f'persistentvolumeclaim "{claim}" not found'
                condition = {"type": "PodScheduled", "status": "False", "message": message}
                self.server.change(pod, status=status | {"conditions": [condition]})
                return
        set_condition(status, "PodScheduled", "", "")
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        status |= {"startTime": now(), "containerStatuses": [_container_status(pod, waiting)]}
        pod = self.server.change(pod, spec=pod["spec"] | {"nodeName": NODE}, status=status)
        one = self.running[pod["metadata"]["uid"]] = _Running(pod)
        one.thread = threading.Thread(target=self._run, args=(one,), daemon=True)
        one.thread.start()

    def _run(self, one: _Running) -> None:
        """Run a pod's container to its end, in a separate thread."""
        folder = self.folder / "pods" / one.pod["metadata"]["uid"]
        folder.mkdir(parents=True)
        with self._lock:
            host = self.network.host()
        one.address = host.address
        try:
            pod = one.pod | {"status": {"podIP": host.address}}
            namespace = pod["metadata"]["namespace"]
            claims = self.folder / "claims" / namespace
            made = container(
                pod,
                folder,
                claims,
                self._hosts,
                secret=partial(self.server.get, "v1", "Secret", namespace),
                config_map=partial(self.server.get, "v1", "ConfigMap", namespace),
            )
            one.process = subprocess.Popen(
                made.start(folder / "container.json", "ip", "netns", "exec", host.name),
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            one.started_at = now()
            assert one.process.stdout
            for line in one.process.stdout:
                one.log.add(line)
            code = one.process.wait()
        except Exception as error:  # noqa: BLE001  # it is in the log of the pod
            one.log.add(f"stand-in: {error!r}".encode())
            one.started_at = one.started_at or now()
            code = 128
        one.log.end()
        with self._lock:
            self.network.drop(host)
        one.ended_at = now()
        one.code = 128 - code if code < 0 else code

    def _update(self, one: _Running, pod: Object) -> None:
        """Bring a pod's status to what its container is, and its container to what the pod is."""
        one.pod, code = pod, one.code
        phase = "Failed" if code else "Succeeded" if code == 0 else "Running"
        if one.started_at and one.written != phase:
            one.written = phase
            pod = self._write_status(one, pod, phase)
        if code is not None:
            if deleted(pod):
                self.server.delete(pod, grace=0)
        elif deleted(pod):
            one.stop(max(1.0, pod["metadata"]["deletionGracePeriodSeconds"]))
        elif time.monotonic() >= one.kill_at:
            one.signal(signal.SIGKILL)
        elif time.monotonic() >= one.probe_at:
            self._probe(one, pod["spec"]["containers"][0])

    def _write_status(self, one: _Running, pod: Object, phase: str) -> Object:
        status = pod["status"] | {"phase": phase, "podIP": one.address}
        if running := phase == "Running":
            state: Object = {"running": {"startedAt": one.started_at}}
            set_condition(status, "Initialized", "", "")
            if probe := pod["spec"]["containers"][0].get("livenessProbe"):
                one.probe_at = time.monotonic() + probe.get("initialDelaySeconds", 0)
        else:
            reason = "Error" if one.code else "Completed"
            end = {"exitCode": one.code, "reason": reason, "startedAt": one.started_at}
            state = {"terminated": end | {"finishedAt": one.ended_at}}
        for kind in ("ContainersReady", "Ready"):
            set_condition(status, kind, "", "", value=str(running))
        status["containerStatuses"] = [_container_status(pod, state, ready=running)]
        return self.server.change(pod, status=status)

    def _probe(self, one: _Running, spec: Any) -> None:
        """Run a liveness probe's command in the container, in a separate thread."""
        probe = spec["livenessProbe"]
        grace = one.pod["spec"].get("terminationGracePeriodSeconds", 30)
        one.probe_at = float("inf")

        def run() -> None:
            with contextlib.suppress(psutil.Error):
                if (first := one.first()) is None:
                    return
                failure = _failure_in(
                    first, probe["exec"]["command"], probe.get("timeoutSeconds", 1)
                )
                one.probes_failed = one.probes_failed + 1 if failure else 0
                if failure:
                    message = f"Liveness probe failed: {failure}"
                    self.server.event(one.pod, "Unhealthy", message, kind="Warning")
                if one.probes_failed >= probe.get("failureThreshold", 3):
                    one.stop(grace)
                one.probe_at = time.monotonic() + probe.get("periodSeconds", 10)

        threading.Thread(target=run, daemon=True).start()

    def _write_names(self) -> None:
        """Write the names that headless Services give to pods; every container has this file."""
        pods = [
            (one.pod, one.address)
            for one in self.running.values()
            if one.address
            and one.code is None
            and self.server.objects.get(path_of(one.pod), one.pod)["metadata"]["uid"]
            == one.pod["metadata"]["uid"]
        ]
        lines = ["127.0.0.1 localhost"]
        for service in self.server.all("v1", "Service"):
            lines += names_of(service, pods)
        text = "".join(f"{line}\n" for line in lines)
        if text != self._hosts.read_text(encoding="utf-8"):
            with self._hosts.open("r+", encoding="utf-8") as file:  # in place: it is mounted
                file.write(text)
                file.truncate()


def _container_status(pod: Object, state: Object, *, ready: bool = False) -> Object:
    name, image = (pod["spec"]["containers"][0][key] for key in ("name", "image"))
    return {"name": name, "image": image, "restartCount": 0, "ready": ready, "state": state}


def _in_container(process: psutil.Process, command: list[str]) -> list[str]:
    """Return the command that runs another in a process's container, with its user and environment."""
    variables = [f"{name}={value}" for name, value in process.environ().items()]
    namespaces = [f"--{one}" for one in ("mount", "uts", "ipc", "net", "pid", "root")]
    enter = ["nsenter", f"--target={process.pid}", *namespaces, "--wd"]
    user = [f"--reuid={process.uids().real}", f"--regid={process.gids().real}"]
    return [*enter, "setpriv", *user, "--clear-groups", "env", "-i", *variables, *command]


def _failure_in(process: psutil.Process, command: list[str], limit: float) -> str:
    """Run a command in a process's container; return its output if it fails, or an empty string."""
    entered = _in_container(process, command)
    try:
        ran = subprocess.run(entered, capture_output=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return f"not within {limit} s"
    output = (ran.stdout + ran.stderr).decode(errors="replace")
    return output or f"exit code {ran.returncode}" if ran.returncode else ""
