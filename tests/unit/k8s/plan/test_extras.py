"""The companion objects: network policy, claims, TensorBoard, metrics, budget, job file."""

import json
from typing import Any

import pytest
import yaml

from k8s.render import manifests
from tests.rendering import CLUSTER, environment_in_pod, job, only, planned, pods, render
from trainer.config.exits import Action, Fault, codes_for

WRAPPED = ["job", "jobset", "pytorchjob"]


def alone(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in job(**changes).items() if key != "network"} | {
        key: changes[key] for key in ("network",) if key in changes
    }


def selected(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_job_is_isolated_unless_it_says_otherwise(launcher: str) -> None:
    rendered = render(alone(), launcher)
    spec = only(rendered, "NetworkPolicy")["spec"]
    own = spec["podSelector"]["matchLabels"]
    for pod in pods(rendered):
        assert selected(own, pod["metadata"]["labels"])
    assert not selected(own, {**own, "app.kubernetes.io/instance": "another-job"})
    peers = [{"podSelector": {"matchLabels": own}}]
    assert spec["ingress"] == [{"from": peers}]
    dns = [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]
    ranks, names = spec["egress"]
    assert ranks == {"to": peers}
    assert names["ports"] == dns
    assert len(names["to"]) == 3
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert "NetworkPolicy" not in render(alone(network={"isolate": False}), launcher).text


def test_what_is_open_without_isolation_is_said() -> None:
    said = "network.isolate: false, so every pod"
    assert any(one.startswith(said) for one in planned(alone(network={"isolate": False})).warnings)
    assert said not in str(planned(alone()).warnings)


def test_what_is_declared_may_be_called() -> None:
    network = {"egress": [{"cidr": "10.0.0.0/8", "ports": [443]}, {"cidr": "fd00::/8"}]}
    egress = only(render(alone(network=network), "job"), "NetworkPolicy")["spec"]["egress"]
    assert egress[2:] == [
        {
            "to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "ports": [{"protocol": "TCP", "port": 443}],
        },
        {"to": [{"ipBlock": {"cidr": "fd00::/8"}}]},
    ]


@pytest.mark.parametrize(
    ("changes", "ports"),
    [
        ({"code": {"git": "https://h/a", "revision": "main"}}, [443]),
        ({"code": {"git": "git@h:a", "revision": "main", "secret": "s"}}, [22]),
        ({"code": {"git": "https://[fd00::1]:8443/a", "revision": "main"}}, [8443]),
        ({"code": {"git": "ssh://git@h:2222/a", "revision": "main", "secret": "s"}}, [2222]),
        ({"code": {"git": "ssh://git@h/a:1", "revision": "main", "secret": "s"}}, [22]),
        ({"data": {"pull": {"source": "s3://b/a", "size": "1Gi"}}}, [443]),
    ],
)
def test_steps_reach_what_they_fetch_from(changes: dict[str, Any], ports: list[int]) -> None:
    egress = only(render(alone(**changes), "job"), "NetworkPolicy")["spec"]["egress"]
    assert [one["port"] for one in egress[-1]["ports"]] == ports


def test_fetching_from_anywhere_is_said() -> None:
    code = {"git": "git@h:a", "revision": "a" * 40, "secret": "s"}
    data = {"pull": {"source": "s3://b/a", "size": "1Gi"}}
    said = "network.fetchFrom: not set, so the pods can connect to every address at port "

    def warned(**changes: Any) -> str:
        return "\n".join(planned(alone(**changes)).warnings)

    assert (
        f"{said}22 and 443, even while they train; set it to the networks of code.git and data.pull"
        in (warned(code=code, data=data))
    )
    assert f"{said}443, even while they train; set it to the networks of data.pull" in warned(
        data=data
    )
    assert "connect only to each other, DNS, data.pull;" in warned(data=data)
    for quiet in (
        {},
        {"data": data, "network": {"fetchFrom": ["10.0.0.0/8"]}},
        {"data": data, "network": {"isolate": False}},
    ):
        assert said not in warned(**quiet)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_metrics_have_a_port_a_monitor_and_an_open_door(launcher: str) -> None:
    rendered = render(alone(metrics={"port": 9400}), launcher)
    monitor = only(rendered, "PodMonitor")["spec"]
    for pod in pods(rendered):
        ports = {one.get("name"): one for one in pod["spec"]["containers"][0]["ports"]}
        assert ports[monitor["podMetricsEndpoints"][0]["port"]]["containerPort"] == 9400
        assert environment_in_pod(pod)["TRAINER_METRICS_PORT"] == "9400"
        assert selected(monitor["selector"]["matchLabels"], pod["metadata"]["labels"])
    door = only(rendered, "NetworkPolicy")["spec"]["ingress"][1]
    assert door["ports"] == [{"protocol": "TCP", "port": 9400}]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_a_dashboard_and_alerts_of_this_job_alone(launcher: str) -> None:
    asked = alone(metrics={"port": 9400, "dashboard": True, "alerts": True}, namespace="lab")
    rendered = render(asked, launcher)
    board = next(one for one in rendered.objects if one["metadata"]["name"] == "a-job-dashboard")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    panels = json.loads(board["data"]["a-job.json"])["panels"]
    (group,) = only(rendered, "PrometheusRule")["spec"]["groups"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [rule["expr"] for rule in group["rules"]]
    assert all('app_kubernetes_io_instance="a-job",namespace="lab"' in one for one in queries)
    monitor = only(rendered, "PodMonitor")["spec"]
    assert monitor["podTargetLabels"] == ["app.kubernetes.io/instance"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places)
    without = render(alone(metrics={"port": 9400}), launcher).objects
    assert "PrometheusRule" not in {one["kind"] for one in without}


@pytest.mark.parametrize("launcher", CLUSTER)
def test_tensorboard_reads_the_run_folder_and_is_no_rank(launcher: str) -> None:
    rendered = render(alone(checkpoints={"pvc": "runs"}, tensorboard={}), launcher)
    deployment, service = only(rendered, "Deployment"), None
    service = next(o for o in rendered.objects if o["metadata"]["name"] == "a-job-tensorboard")
    board = deployment["spec"]["template"]
    assert {"name": "out", "persistentVolumeClaim": {"claimName": "runs"}} in board["spec"][
        "volumes"
    ]
    assert selected(service["spec"]["selector"], board["metadata"]["labels"])
    (container,) = board["spec"]["containers"]
    assert container["args"][:2] == ["--logdir", "/out/a-job"]
    assert all(environment_in_pod(pod)["TRAINER_TENSORBOARD"] == "True" for pod in pods(rendered))
    own = next(o for o in rendered.objects if o["kind"] == "NetworkPolicy")
    policy = own["spec"]["podSelector"]["matchLabels"]
    assert not selected(policy, board["metadata"]["labels"])
    for pod in pods(rendered):
        assert not selected(service["spec"]["selector"], pod["metadata"]["labels"])


def test_tensorboard_is_that_of_the_jobs_own_image_unless_another_is_named() -> None:
    values = alone(checkpoints={"pvc": "runs"}, imagePullPolicy="Always")
    for tensorboard, image in (({}, values["image"]), ({"image": "board:1"}, "board:1")):
        deployment = only(render(values | {"tensorboard": tensorboard}, "job"), "Deployment")
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        assert container["image"] == image
        assert container.get("imagePullPolicy") == (None if tensorboard else "Always")


def test_tensorboard_may_read_a_bucket_as_the_job_does() -> None:
    bucket = {"csi": {"driver": "gcsfuse.csi.storage.gke.io", "attributes": {"bucketName": "runs"}}}
    wanted = {"gke-gcsfuse/volumes": "true"}
    values = alone(checkpoints=bucket, tensorboard={}, annotations=wanted, serviceAccount="reader")
    rendered = render(values, "job")
    for pod in (only(rendered, "Deployment")["spec"]["template"], *pods(rendered)):
        assert pod["metadata"]["annotations"].items() >= wanted.items()
        assert pod["spec"]["serviceAccountName"] == "reader"


@pytest.mark.parametrize("checkpoints", [None, {"emptyDir": "1Gi"}, {"hostPath": "/c"}])
def test_tensorboard_needs_a_volume_that_it_can_see(checkpoints: Any) -> None:
    values = alone(tensorboard={}) | ({"checkpoints": checkpoints} if checkpoints else {})
    with pytest.raises(
        Fault, match="tensorboard: reads the run folder, which here only the job's pods"
    ):
        render(values, "job")


@pytest.mark.parametrize(("nodes", "fewest"), [(3, 3), ({"min": 1, "max": 3}, 1)])
def test_the_budget_keeps_the_pods_that_the_job_needs(nodes: Any, fewest: int) -> None:
    values = alone(nodes=nodes, trainer={"globalBatch": 6}, disruptionBudget=True)
    assert only(render(values, "job"), "PodDisruptionBudget")["spec"]["minAvailable"] == fewest


def test_the_job_file_in_the_pod_renders_to_the_same() -> None:
    values = alone(mountJobFile=True, env=[{"name": "A", "value": "x: {y}\n$(Z)"}])
    rendered = render(values, "jobset")
    text = only(rendered, "ConfigMap")["data"]["job.yaml"]
    assert render(yaml.safe_load(text), "jobset").text == rendered.text


def test_a_claim_is_called_like_its_volume() -> None:
    values = alone(
        nodes=2,
        checkpoints={"claim": {"size": "1Gi", "storageClass": "fast"}},
        volumes=[{"name": "notes", "path": "/n", "claim": {"size": "2Gi"}}],
    )
    rendered = render(values, "job")
    claims = {
        o["metadata"]["name"]: o["spec"]
        for o in rendered.objects
        if o["kind"] == "PersistentVolumeClaim"
    }
    assert set(claims) == {"a-job-checkpoints", "a-job-notes"}
    assert claims["a-job-checkpoints"] == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "1Gi"}},
    }
    used = {
        one["persistentVolumeClaim"]["claimName"]
        for one in pods(rendered)[0]["spec"]["volumes"]
        if "persistentVolumeClaim" in one
    }
    assert used == set(claims)


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
def test_a_claim_for_one_node_is_refused_for_several(mode: str) -> None:
    claim = {"claim": {"size": "1Gi", "accessMode": mode}}
    assert render(job(checkpoints=claim), "job")
    with pytest.raises(Fault, match=f"checkpoints.claim.accessMode='{mode}': 2 pods"):
        render(job(nodes=2, checkpoints=claim), "job")
    with pytest.raises(Fault, match=r"volumes\[0\].claim.accessMode"):
        render(job(nodes=2, volumes=[{"name": "a", "path": "/a", **claim}]), "job")


@pytest.mark.parametrize("launcher", WRAPPED)
@pytest.mark.parametrize("nodes", [1, 3])
def test_an_app_wrapper_holds_everything(launcher: str, nodes: int) -> None:
    values = alone(
        appWrapper=True,
        nodes=nodes,
        trainer={"globalBatch": 6},
        scheduling={"queue": "q"},
    )
    (wrapper,) = render(values, launcher).objects
    plain = render({**values, "appWrapper": False, "scheduling": {}}, launcher).objects
    assert [one["template"] for one in wrapper["spec"]["components"]] == list(plain)
    assert wrapper["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    values |= {"scheduling": {}, "faults": {"suspend": True}}
    assert render(values, launcher).objects[0]["spec"]["suspend"] is True
    codes = wrapper["metadata"]["annotations"][
        "workload.codeflare.dev.appwrapper/terminalExitCodes"
    ]
    assert codes == ",".join(map(str, codes_for(Action.FAIL)))
    main = wrapper["spec"]["components"][-1]
    assert sum(one["replicas"] for one in main["podSets"]) == nodes
    for one in main["podSets"]:
        at: Any = main
        for part in one["path"].replace("[", ".[").split("."):
            at = at[int(part[1:-1]) if part[0] == "[" else part]
        assert "containers" in at["spec"]


@pytest.mark.parametrize("launcher", WRAPPED)
def test_an_app_wrapper_lets_the_job_restart(launcher: str) -> None:
    """AppWrapper 1.2 fails a job for a failed pod after 1 minute, for a missing one after 1 or 5."""
    (wrapper,) = render(job(appWrapper=True), launcher).objects
    annotations = wrapper["metadata"]["annotations"]
    for cause in ("admission", "warmup", "failure"):
        assert annotations[f"workload.codeflare.dev.appwrapper/{cause}GracePeriodDuration"] == "24h"
    warnings = str(planned(job(appWrapper=True), launcher).warnings)
    assert "appWrapper: its controller ends the job if a pod" in warnings
    assert "appWrapper: its controller needs more rights" in warnings
    assert "appWrapper" not in str(planned(job(), launcher).warnings)


@pytest.mark.parametrize("launcher", ["trainjob", "volcano"])
def test_what_no_app_wrapper_takes(launcher: str) -> None:
    with pytest.raises(Fault, match=f"appWrapper=True: not on launcher {launcher}"):
        render(job(appWrapper=True), launcher)


def test_an_app_wrapper_with_tensorboard_would_never_end() -> None:
    with pytest.raises(Fault, match="tensorboard: never ends"):
        render(job(appWrapper=True, tensorboard={}, checkpoints={"pvc": "c"}), "job")


@pytest.mark.parametrize("launcher", CLUSTER)
def test_the_job_can_own_what_is_beside_it(launcher: str) -> None:
    rendered = render(alone(mountJobFile=True), launcher)
    *others, made = manifests.owned(rendered, "uid-7").objects
    assert "ownerReferences" not in made["metadata"]
    owner = {key: made[key] for key in ("apiVersion", "kind")}
    owner |= {"name": made["metadata"]["name"], "uid": "uid-7"}
    assert others
    assert all(one["metadata"]["ownerReferences"] == [owner] for one in others)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_one_label_finds_every_object(launcher: str) -> None:
    values = alone(mountJobFile=True, checkpoints={"claim": {"size": "1Gi"}}, tensorboard={})
    for one in render(values, launcher).objects:
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "a-job"


def test_names_of_objects_beside_count() -> None:
    with pytest.raises(Fault, match=r"a-job-file of 64 characters, .*use at most 54$"):
        planned(alone(name="a" * 53 + "-a", mountJobFile=True))
