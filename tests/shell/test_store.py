"""The store orders what it hears by version, whatever the order of arrival."""

from typing import Any

import pytest

from trainingjob_operator.core.names import UID_LABEL
from trainingjob_operator.shell.kinds import CONFIG_MAP, JOB, JOB_SET, LEASE, NODE, POD
from trainingjob_operator.shell.store import Shelf, Store, slim_down


def pod(name: str = "p", version: int = 1, uid: str = "u", job_uid: str = "job", namespace: str = "ns", **status: Any):
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": {UID_LABEL: job_uid}}, "spec": {"nodeName": "n"}, "status": status}


@pytest.fixture
def shelf() -> Shelf:
    return Shelf(POD)


def names(shelf: Shelf) -> list[str]:
    return [item["metadata"]["name"] for item in shelf]


def test_a_newer_state_wins_and_is_news(shelf: Shelf) -> None:
    assert shelf.put(pod(version=1, phase="Pending"))
    assert shelf.put(pod(version=3, phase="Running"))
    assert not shelf.put(pod(version=2, phase="Pending"))

    assert shelf.find("ns", "p")["status"] == {"phase": "Running"}


def test_what_nobody_reads_is_no_news(shelf: Shelf) -> None:
    first, second = pod(version=1), pod(version=2)
    second["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    shelf.put(first)

    assert not shelf.put(second)
    assert not shelf.put(second)


def test_a_list_drops_what_it_does_not_show(shelf: Shelf) -> None:
    shelf.put(pod("a", version=1))
    shelf.put(pod("b", version=2))

    changed = shelf.replace([pod("b", version=2)], version=5)

    assert [item["metadata"]["name"] for item in changed] == ["a"]
    assert names(shelf) == ["b"]


def test_a_list_keeps_what_was_written_after_it_was_made(shelf: Shelf) -> None:
    shelf.put(pod("mine", version=8))

    shelf.replace([pod("other", version=3)], version=5)

    assert sorted(names(shelf)) == ["mine", "other"]


def test_a_late_event_does_not_bring_back_what_the_list_no_longer_shows(shelf: Shelf) -> None:
    shelf.replace([], version=9)

    assert not shelf.put(pod(version=7))
    assert shelf.put(pod(version=10))


def test_lists_of_two_namespaces_do_not_mix(shelf: Shelf) -> None:
    shelf.put(pod("a", version=1, namespace="one"))
    shelf.put(pod("b", version=1, namespace="two"))

    shelf.replace([], version=5, namespace="one")

    assert names(shelf) == ["b"]
    assert shelf.put(pod("c", version=3, namespace="two")), "only namespace one is known at version 5"


def test_a_namesake_survives_the_end_of_its_predecessor(shelf: Shelf) -> None:
    shelf.put(pod(version=4, uid="new"))

    assert not shelf.remove(pod(version=5, uid="old"))
    assert shelf.remove(pod(version=6, uid="new"))
    assert len(shelf) == 0


def test_objects_of_a_job(shelf: Shelf) -> None:
    for item in (pod("b"), pod("a"), pod("c", job_uid="other"), pod("d", namespace="elsewhere"), pod("e", job_uid="")):
        shelf.put(item)

    assert [item["metadata"]["name"] for item in shelf.of_job("ns", "job")] == ["a", "b"]
    shelf.put(pod("a", version=2, job_uid="other"))
    assert [item["metadata"]["name"] for item in shelf.of_job("ns", "job")] == ["b"]
    shelf.remove(pod("b"))
    assert shelf.of_job("ns", "job") == ()


METADATA = {"name": "x", "managedFields": [{}], "labels": {"a": "b"}}
SLIM = {
    "pod": (POD, {"spec": {"nodeName": "n", "containers": [{}]}}, {"spec": {"nodeName": "n"}}),
    "job": (JOB, {"spec": {"parallelism": 2, "template": {}}}, {"spec": {"parallelism": 2}}),
    "jobset": (
        JOB_SET,
        {"spec": {"suspend": True, "replicatedJobs": [{"name": "slice", "replicas": 2, "template": {}}]}},
        {"spec": {"suspend": True, "replicatedJobs": [{"name": "slice", "replicas": 2}]}},
    ),
    "config map": (CONFIG_MAP, {"data": {"a": "b"}}, {"data": {"a": "b"}}),
}


@pytest.mark.parametrize(("kind", "fields", "want"), SLIM.values(), ids=SLIM.keys())
def test_only_what_somebody_reads_is_kept(kind: Any, fields: Any, want: Any) -> None:
    assert slim_down(kind, {"metadata": METADATA, **fields}) == {
        "metadata": {"name": "x", "labels": {"a": "b"}},
        **want,
    }


def test_a_node_that_only_beats_its_heart_does_not_change() -> None:
    shelf = Shelf(NODE)

    def node(version: int, beat: str, ready: str):
        conditions = [{"type": "Ready", "status": ready, "lastHeartbeatTime": beat, "message": "m"}]
        return {
            "metadata": {"name": "n", "resourceVersion": str(version), "annotations": {"a": beat}},
            "spec": {"taints": [{"key": "k"}], "podCIDR": "10.0.0.0/24"},
            "status": {"conditions": conditions, "images": ["many"]},
        }

    shelf.put(node(1, "10:00", "True"))
    assert not shelf.put(node(2, "10:05", "True"))
    assert shelf.put(node(3, "10:06", "Unknown"))
    kept = shelf.find("", "n")
    assert kept["spec"] == {"taints": [{"key": "k"}]}
    assert kept["status"]["conditions"][0]["status"] == "Unknown"
    assert "images" not in kept["status"]


def test_writes_of_kinds_that_are_not_kept_pass_by() -> None:
    store = Store([POD])
    store.put(LEASE, {"metadata": {"name": "l"}})
    store.remove(LEASE, {"metadata": {"name": "l"}})

    with pytest.raises(KeyError):
        store[LEASE]
