"""Where pods run: what `scheduling` makes of every launcher's objects."""

from typing import Any

import pytest

from tests.rendering import CLUSTER, job, pods, render
from trainer.config.exits import Fault

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def pod_specs(launcher: str, **scheduling: Any) -> list[dict[str, Any]]:
    found = [pod["spec"] for pod in pods(render(job(nodes=2, scheduling=scheduling), launcher))]
    assert found
    return found


@pytest.mark.parametrize("launcher", CLUSTER)
def test_fields_of_the_pod_are_handed_on(launcher: str) -> None:
    given = {
        "schedulerName": "mine",
        "nodeSelector": {"a.io/b": "yes"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": {PREFERRED: []}},
    }
    for spec in pod_specs(launcher, priorityClass="high", **given):
        assert {key: spec[key] for key in given} == given
        assert spec["priorityClassName"] == "high"


@pytest.mark.parametrize("launcher", CLUSTER)
def test_nothing_is_said_that_was_not_asked_for(launcher: str) -> None:
    for spec in pod_specs(launcher):
        assert not {"affinity", "tolerations", "nodeSelector", "schedulerName"} & set(spec)
        assert not {"priorityClassName", "topologySpreadConstraints"} & set(spec)


@pytest.mark.parametrize("launcher", CLUSTER)
def test_hosts_are_avoided_in_every_term(launcher: str) -> None:
    avoided = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["a", "b"]}
    for spec in pod_specs(launcher, hostIgnoreList=["a", "b"]):
        terms = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert terms == [{"matchExpressions": [avoided]}]
    by_label = {"kubernetes.io/hostname": ["b"], "empty": []}
    for spec in pod_specs(launcher, hostIgnoreList=["a"], avoidLabels=by_label):
        terms = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
        assert terms == [{"matchExpressions": [avoided]}]
    own = {"key": "x", "operator": "Exists"}
    written = {
        PREFERRED: [],
        REQUIRED: {
            "nodeSelectorTerms": [{"matchExpressions": [own]}, {"matchFields": [{"key": "y"}]}]
        },
    }
    for spec in pod_specs(launcher, hostIgnoreList=["a", "b"], affinity={"nodeAffinity": written}):
        node = spec["affinity"]["nodeAffinity"]
        assert node[PREFERRED] == []
        assert node[REQUIRED]["nodeSelectorTerms"] == [
            {"matchExpressions": [own, avoided]},
            {"matchFields": [{"key": "y"}], "matchExpressions": [avoided]},
        ]


@pytest.mark.parametrize("launcher", CLUSTER)
def test_spread_and_pack_select_the_pods_of_the_job(launcher: str) -> None:
    written = {"podAffinity": {PREFERRED: [{"weight": 1}], REQUIRED: []}}
    rendered = render(
        job(scheduling={"spread": "host", "pack": "zone", "affinity": written}), launcher
    )
    for pod in pods(rendered):
        (constraint,) = pod["spec"]["topologySpreadConstraints"]
        assert (constraint["topologyKey"], constraint["maxSkew"]) == ("host", 1)
        first, second = pod["spec"]["affinity"]["podAffinity"][PREFERRED]
        assert first == {"weight": 1}
        assert second["podAffinityTerm"]["topologyKey"] == "zone"
        assert pod["spec"]["affinity"]["podAffinity"][REQUIRED] == []
        for selector in (constraint, second["podAffinityTerm"]):
            wanted = selector["labelSelector"]["matchLabels"]
            assert wanted.items() <= pod["metadata"]["labels"].items()
            assert "a-job" in wanted.values()


@pytest.mark.parametrize("launcher", [name for name in CLUSTER if name != "volcano"])
def test_kueue_finds_its_labels_on_the_job_alone_and_its_annotations_on_the_pods(
    launcher: str,
) -> None:
    asked = {"queue": "q", "priority": "p", "topology": {"preferred": "rack"}, "gang": True}
    rendered = render(job(scheduling=asked), launcher)
    wanted = {"kueue.x-k8s.io/queue-name": "q", "kueue.x-k8s.io/priority-class": "p"}
    *others, made = (one["metadata"]["labels"] for one in rendered.objects)
    assert wanted.items() <= made.items()
    assert all(not wanted.keys() & labels.keys() for labels in others)
    for pod in pods(rendered):
        key = "kueue.x-k8s.io/podset-preferred-topology"
        assert pod["metadata"]["annotations"][key] == "rack"
        assert "kueue.x-k8s.io/podset-required-topology" not in pod["metadata"]["annotations"]


def test_volcano_has_a_queue_and_a_priority_of_its_own() -> None:
    asked = {"queue": "q", "priorityClass": "p", "schedulerName": "second-volcano"}
    made = render(job(scheduling=asked), "volcano").objects[0]
    spec = made["spec"]
    assert (spec["queue"], spec["priorityClassName"]) == ("q", "p")
    assert spec["schedulerName"] == "second-volcano"
    assert not [key for key in made["metadata"]["labels"] if "kueue" in key]
    assert render(job(), "volcano").objects[0]["spec"]["schedulerName"] == "volcano"


@pytest.mark.parametrize("launcher", ["job", "jobset"])
def test_a_gang_is_a_pod_group_that_the_pods_name(launcher: str) -> None:
    rendered = render(job(nodes=3, trainer={"globalBatch": 3}, scheduling={"gang": True}), launcher)
    group = rendered.objects[0]
    assert (group["kind"], group["spec"]) == ("PodGroup", {"minMember": 3})
    for pod in pods(rendered):
        label = pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"]
        assert label == group["metadata"]["name"]
    assert "PodGroup" not in render(job(), launcher).text


@pytest.mark.parametrize(
    ("scheduler", "plugin"), [(None, "coscheduling"), ("volcano", "volcano"), ("x", "coscheduling")]
)
def test_a_gang_of_a_trainjob_is_its_runtimes_policy(scheduler: str | None, plugin: str) -> None:
    asked = {"gang": True} | ({"schedulerName": scheduler} if scheduler else {})
    runtime, _ = render(job(scheduling=asked), "trainjob").objects
    assert runtime["spec"]["podGroupPolicy"] == {plugin: {}}
    assert "podGroupPolicy" not in render(job(), "trainjob").objects[0]["spec"]


def test_a_gang_of_a_pytorchjob_is_its_run_policys() -> None:
    values = job(nodes=3, trainer={"globalBatch": 3}, scheduling={"gang": True})
    policy = render(values, "pytorchjob").objects[0]["spec"]["runPolicy"]
    assert policy["schedulingPolicy"] == {"minAvailable": 3}
    assert "schedulingPolicy" not in render(job(), "pytorchjob").objects[0]["spec"]["runPolicy"]


@pytest.mark.parametrize("launcher", ["jobset", "trainjob"])
def test_a_topology_to_oneself_stands_on_the_replicated_job(launcher: str) -> None:
    objects = render(job(scheduling={"exclusiveTopology": "rack"}), launcher).objects
    held = objects[0]["spec"]
    held = held if launcher == "jobset" else held["template"]["spec"]
    (replicated,) = held["replicatedJobs"]
    wanted = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "rack"}
    assert replicated["template"]["metadata"]["annotations"] == wanted


@pytest.mark.parametrize("launcher", ["job", "jobset"])
def test_a_gang_for_a_scheduler_that_reads_no_such_group_is_refused(launcher: str) -> None:
    with pytest.raises(Fault, match="schedulerName='volcano': Volcano reads only its own"):
        render(job(scheduling={"gang": True, "schedulerName": "volcano"}), launcher)
