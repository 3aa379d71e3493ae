"""The store orders objects by version, in any order of arrival."""

import json
import tracemalloc
from typing import Any
from unittest.mock import ANY

import pytest

from trainingjob_operator.core.config_maps import DATA_HASH, hash_data
from trainingjob_operator.core.names import AVOIDED_NODES_ANNOTATION, UID_LABEL
from trainingjob_operator.shell.kinds import CONFIG_MAP, EVENT, JOB, JOB_SET, LEASE, NODE, POD, TRAINING_JOB, Kind
from trainingjob_operator.shell.store import (
    MAX_ANNOTATION,
    MAX_EVENT_MESSAGE,
    MAX_OWNERS,
    STATUS_HASH,
    KindStore,
    Store,
    trim_manifest,
)


def pod(name: str = "p", version: int = 1, uid: str = "u", job_uid: str = "job", namespace: str = "ns", **status: Any):
    metadata = {"name": name, "namespace": namespace, "uid": uid, "resourceVersion": str(version)}
    return {"metadata": metadata | {"labels": {UID_LABEL: job_uid}}, "spec": {"nodeName": "n"}, "status": status}


@pytest.fixture
def shelf() -> KindStore:
    return KindStore(POD)


def names(shelf: KindStore) -> list[str]:
    return [item["metadata"]["name"] for item in shelf]


def test_a_newer_state_wins_and_is_news(shelf: KindStore) -> None:
    assert shelf.put(pod(version=1, phase="Pending"))
    assert shelf.put(pod(version=3, phase="Running"))
    assert not shelf.put(pod(version=2, phase="Pending"))

    assert shelf.find("ns", "p")["status"] == {"phase": "Running"}


def test_changes_of_unused_fields_wake_no_reconciler(shelf: KindStore) -> None:
    first, second = pod(version=1), pod(version=2)
    second["metadata"]["managedFields"] = [{"manager": "kubelet"}]
    shelf.put(first)

    assert not shelf.put(second)
    assert not shelf.put(second)


def training_job(version: int, **status: Any) -> dict[str, Any]:
    metadata = {"name": "llama", "namespace": "ns", "uid": "u", "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"model": {}, "slices": {"max": 2}}, "status": status}


def test_the_status_of_a_job_is_kept_for_metrics_and_all_its_changes_are_seen() -> None:
    shelf = KindStore(TRAINING_JOB)
    world = {"generation": 3, "slices": [0, 1], "members": [{"pod": "a"}]}

    assert shelf.put(training_job(1, phase="Running", world=world, conditions=[{"type": "Valid"}]))
    assert not shelf.put(training_job(2, phase="Running", world=world, conditions=[{"type": "Valid"}]))
    assert shelf.put(training_job(3, phase="Running", world=world, conditions=[{"type": "Failed"}]))
    assert shelf.put(training_job(4, phase="Running", world=world | {"members": []}, conditions=[{"type": "Failed"}]))

    kept = shelf.find("ns", "llama")
    assert kept
    status = {key: value for key, value in kept["status"].items() if key != STATUS_HASH}
    assert status == {"phase": "Running", "world": {"generation": 3, "slices": [0, 1]}}
    assert trim_manifest(TRAINING_JOB, kept) == kept


def test_objects_share_their_keys(shelf: KindStore) -> None:
    for name in ("a", "b"):
        shelf.put(json.loads(json.dumps(pod(name, phase="Running"))))

    first, second = shelf
    assert next(iter(first["status"])) is next(iter(second["status"]))


def test_a_list_drops_what_it_does_not_show(shelf: KindStore) -> None:
    shelf.put(pod("a", version=1))
    shelf.put(pod("b", version=2))

    changed = shelf.replace([pod("b", version=2)], version=5)

    assert [item["metadata"]["name"] for item in changed] == ["a"]
    assert names(shelf) == ["b"]


def test_list_preserves_later_writes(shelf: KindStore) -> None:
    shelf.put(pod("mine", version=8))

    shelf.replace([pod("other", version=3)], version=5)

    assert sorted(names(shelf)) == ["mine", "other"]


def test_a_late_event_does_not_bring_back_what_the_list_no_longer_shows(shelf: KindStore) -> None:
    shelf.replace([], version=9)

    assert not shelf.put(pod(version=7))
    assert shelf.put(pod(version=10))


@pytest.mark.parametrize("namespace", ["", "ns"])
def test_lower_versions_from_a_restored_etcd_replace_all_objects(shelf: KindStore, namespace: str) -> None:
    shelf.replace(
        [pod("changed", version=95, uid="a"), pod("gone", version=95, uid="b")], version=100, namespace=namespace
    )
    shelf.put(pod("younger", version=120, uid="c"))

    changed = shelf.replace([pod("changed", version=40, uid="a", phase="Failed")], version=50, namespace=namespace)

    assert names(shelf) == ["changed"]
    assert {one["metadata"]["name"] for one in changed} == {"changed", "gone", "younger"}
    assert shelf.find("ns", "changed")["status"] == {"phase": "Failed"}
    assert shelf.put(pod("changed", version=51, uid="a")), "later versions of the restored history count"
    assert not shelf.put(pod("late", version=49, uid="d"))


def test_lists_of_two_namespaces_do_not_mix(shelf: KindStore) -> None:
    shelf.put(pod("a", version=1, namespace="one"))
    shelf.put(pod("b", version=1, namespace="two"))

    shelf.replace([], version=5, namespace="one")

    assert names(shelf) == ["b"]
    assert shelf.put(pod("c", version=3, namespace="two")), "only namespace one is known at version 5"


def test_a_namesake_survives_the_end_of_its_predecessor(shelf: KindStore) -> None:
    shelf.put(pod(version=4, uid="new"))

    assert not shelf.remove(pod(version=5, uid="old"))
    assert shelf.remove(pod(version=6, uid="new"))
    assert len(shelf) == 0


def test_objects_of_a_job(shelf: KindStore) -> None:
    for item in (pod("b"), pod("a"), pod("c", job_uid="other"), pod("d", namespace="elsewhere"), pod("e", job_uid="")):
        shelf.put(item)

    assert [item["metadata"]["name"] for item in shelf.list_children("ns", "job")] == ["a", "b"]
    shelf.put(pod("a", version=2, job_uid="other"))
    assert [item["metadata"]["name"] for item in shelf.list_children("ns", "job")] == ["b"]
    shelf.remove(pod("b"))
    assert shelf.list_children("ns", "job") == ()


METADATA = {
    "name": "x",
    "managedFields": [{}],
    "labels": {"a": "b", UID_LABEL: "job"},
    "annotations": {"a": "b", AVOIDED_NODES_ANNOTATION: "node-1"},
    "ownerReferences": [{"uid": str(number)} for number in range(100)],
}
SLIM_METADATA = {
    "name": "x",
    "labels": {UID_LABEL: "job"},
    "annotations": {AVOIDED_NODES_ANNOTATION: "node-1"},
    "ownerReferences": [{"uid": str(number)} for number in range(MAX_OWNERS)],
}
IMAGE = {"template": {"spec": {"template": {"spec": {"containers": [{"image": "trainer:1"}]}}}}}
FAT = {"template": {"spec": {"template": {"spec": {"containers": [{"image": "trainer:1", "env": []}, {}]}}, "x": 1}}}
SLIM = {
    "pod": (POD, {"spec": {"nodeName": "n", "containers": [{}]}}, {"spec": {"nodeName": "n"}}),
    "job": (JOB, {"spec": {"parallelism": 2, "template": {}}}, {"spec": {"parallelism": 2}}),
    "jobset": (
        JOB_SET,
        {"spec": {"suspend": True, "replicatedJobs": [{"name": "slice", "replicas": 2, "template": {}}]}},
        {"spec": {"suspend": True, "replicatedJobs": [{"name": "slice", "replicas": 2}]}},
    ),
    "jobset with pods": (
        JOB_SET,
        {"spec": {"replicatedJobs": [{"name": "slice", **FAT}]}},
        {"spec": {"replicatedJobs": [{"name": "slice", **IMAGE}]}},
    ),
    "config map": (
        CONFIG_MAP,
        {"data": {"a": "b"}, "binaryData": {"c": "d"}},
        {DATA_HASH: hash_data({"data": {"a": "b"}})},
    ),
    "training job": (
        TRAINING_JOB,
        {"spec": {"a": "b", "slices": {"count": 2}}, "status": {"phase": "Running"}},
        {"spec": {"slices": {"count": 2}}, "status": {"phase": "Running", STATUS_HASH: ANY}},
    ),
}


@pytest.mark.parametrize(("kind", "fields", "want"), SLIM.values(), ids=SLIM.keys())
def test_store_keeps_only_used_fields(kind: Any, fields: Any, want: Any) -> None:
    slim = trim_manifest(kind, {"metadata": METADATA, **fields})

    assert slim == {"metadata": SLIM_METADATA, **want}
    assert trim_manifest(kind, slim) == slim


def test_of_a_long_annotation_a_hash_is_kept() -> None:
    def kept(value: str) -> str:
        metadata = {"name": "x", "annotations": {AVOIDED_NODES_ANNOTATION: value}}
        return trim_manifest(POD, {"metadata": metadata})["metadata"]["annotations"][AVOIDED_NODES_ANNOTATION]

    assert kept("a" * MAX_ANNOTATION) == "a" * MAX_ANNOTATION
    assert len(kept("a" * MAX_ANNOTATION * 2)) < 80
    assert kept("a" * MAX_ANNOTATION * 2) != kept("b" * MAX_ANNOTATION * 2)


def test_of_an_event_little_is_kept() -> None:
    event = {
        "metadata": {"name": "e", "annotations": {"a": "b"}},
        "type": "Warning",
        "reason": "FailedCreate",
        "message": "m" * 100_000,
        "involvedObject": {"kind": "Job", "name": "j", "uid": "u", "fieldPath": "f" * 100_000},
        "source": {"component": "c" * 100_000},
        "lastTimestamp": "2026-01-01T00:00:00Z",
    }

    slim = trim_manifest(EVENT, event)

    assert len(str(slim)) < 2 * MAX_EVENT_MESSAGE
    assert slim["involvedObject"] == {"kind": "Job", "name": "j", "uid": "u"}
    assert (slim["reason"], slim["lastTimestamp"]) == ("FailedCreate", "2026-01-01T00:00:00Z")


def test_data_is_compared_by_its_hash() -> None:
    def config_map(**data: str):
        return {"metadata": {"name": "c"}, "data": data}

    assert hash_data(trim_manifest(CONFIG_MAP, config_map(a="b"))) == hash_data(config_map(a="b"))
    assert hash_data(trim_manifest(CONFIG_MAP, config_map(a="c"))) != hash_data(config_map(a="b"))
    assert hash_data(trim_manifest(CONFIG_MAP, {"metadata": {"name": "c"}})) != hash_data(config_map())


def test_uids_of_a_namespace_are_indexed(shelf: KindStore) -> None:
    shelf.put(pod("a", uid="u-1"))
    shelf.put(pod("b", uid="u-2", namespace="other"))

    assert "u-1" in shelf.uids("ns")
    assert "u-2" not in shelf.uids("ns")
    shelf.put(pod("a", version=2, uid="u-3"))
    assert "u-1" not in shelf.uids("ns")
    shelf.remove(pod("a", uid="u-3"))
    assert "u-3" not in shelf.uids("ns")


def test_a_node_that_only_beats_its_heart_does_not_change() -> None:
    shelf = KindStore(NODE)

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


def test_a_thousand_idle_jobs_take_little_memory() -> None:
    def fill(number: int) -> Store:
        store = Store((TRAINING_JOB, JOB_SET))
        for index in range(number):
            named = {"name": f"job-{index}", "uid": f"u-{index}", "ownerReferences": [{"uid": "o", "controller": True}]}
            job = training_job(1, phase="Running", conditions=[], plan={"sizes": {str(size): {} for size in range(8)}})
            store.put(TRAINING_JOB, job | {"metadata": job["metadata"] | named})
            jobs = [{"name": "slice", "replicas": 2, "template": {"spec": {"completions": 1}}}]
            store.put(JOB_SET, {"metadata": job["metadata"] | named, "spec": {"replicatedJobs": jobs}})
        return store

    fill(1)
    tracemalloc.start()
    store = fill(200)
    per_job = tracemalloc.get_traced_memory()[0] / 200
    tracemalloc.stop()

    assert len(store[JOB_SET]) == 200
    assert per_job < 700.0, "uncompressed JSON takes a thousand bytes, and dicts take five thousand"


@pytest.mark.parametrize("kind", [TRAINING_JOB, JOB_SET, CONFIG_MAP, POD, NODE])
def test_text_of_any_kind_is_read_as_it_was_stored(kind: Kind) -> None:
    shelf = KindStore(kind)
    uid = '\ud800 \u2028 "quoted" \x00'

    assert shelf.put({"metadata": {"name": "a", "namespace": "ns", "uid": uid, "resourceVersion": "1"}})

    assert shelf.find("ns", "a")["metadata"]["uid"] == uid
    assert [one["metadata"]["uid"] for one in shelf] == [uid]


def test_a_list_does_not_bring_back_what_was_deleted_while_it_was_read(shelf: KindStore) -> None:
    shelf.replace([], version=90)
    shelf.put(pod(version=100))
    page = [pod(version=100), pod("other", version=120, uid="v")]
    shelf.remove(pod(version=151))
    shelf.replace(page, version=150)
    assert names(shelf) == ["other"]

    assert shelf.put(pod(version=160, uid="next")), "another object has the name"
    assert ("ns", "p") in shelf


def test_a_late_event_does_not_bring_back_a_deleted_object(shelf: KindStore) -> None:
    shelf.put(pod(version=1))
    shelf.remove(pod(version=3))

    assert not shelf.put(pod(version=2, phase="Failed"))
    assert ("ns", "p") not in shelf


def test_deletions_are_remembered_until_the_next_list_of_their_namespace(shelf: KindStore) -> None:
    for namespace in ("a", "b"):
        shelf.remove(pod(version=3, namespace=namespace, uid=f"u-{namespace}"))
    shelf.replace([], version=5, namespace="a")
    assert shelf._removed_uids == {"b": {"u-b"}}
    shelf.replace([], version=6)
    assert shelf._removed_uids == {}

    shelf.remove(pod(version=7))
    shelf.replace([pod(version=2)], version=4)
    assert names(shelf) == ["p"], "a restored etcd has the object again"
