"""A reader of pods reads what changed, and only that, whichever objects change from one reading to the next."""

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.builders import NOW, ready_node
from tests.support.scenes import AVOID_SIGNAL, TAINT, Scene
from trainingjob_operator.core.manifests import Children, Manifest
from trainingjob_operator.core.observe.pods import PodReader, read_pods
from trainingjob_operator.core.times import format_time

NODE = "node-0-0"


def children() -> Children:
    return Scene().place(0, 1).children()


def edit_pod(children: Children, **parts: dict[str, Any]) -> Children:
    """Return the children with another manifest of the first pod, in which these parts are updated."""
    first = deepcopy(children.pods[0])
    for part, update in parts.items():
        first[part] |= update
    return replace(children, pods=(first, *children.pods[1:]))


def edit_node(children: Children, node: Manifest) -> Children:
    return replace(children, nodes=children.nodes | {NODE: node})


def delete(children: Children) -> Children:
    return edit_pod(children, metadata={"deletionTimestamp": format_time(NOW + timedelta(seconds=5))})


EDITS = {
    "its container has ended": lambda old: edit_pod(old, status={"phase": "Failed", "reason": "Evicted"}),
    "its node is not ready": lambda old: edit_node(old, ready_node(NODE, ready=False)),
    "its node is announced": lambda old: edit_node(old, ready_node(NODE) | {"spec": {"taints": [{"key": TAINT}]}}),
    "its node is gone": lambda old: replace(
        old, nodes={name: node for name, node in old.nodes.items() if name != NODE}
    ),
    "it moves to another node": lambda old: edit_pod(old, spec={"nodeName": "node-1-1"}),
    "it is being deleted": delete,
    "its Job is gone": lambda old: replace(old, orphans=frozenset({old.pods[0]["metadata"]["uid"]})),
    "it loses its labels": lambda old: edit_pod(old, metadata={"labels": {}}),
    "another pod follows it": lambda old: edit_pod(old, metadata={"uid": "another"}),
    "it is gone": lambda old: replace(old, pods=old.pods[1:]),
    "an event changed nothing": edit_pod,
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_only_the_changed_pod_is_read_again(edit: Any) -> None:
    before, reader = children(), PodReader()
    first = reader.read(before, NOW)
    after = edit(before)

    second = reader.read(after, NOW)

    assert second == read_pods(after, NOW)
    assert [one is another for one, another in zip(first[1:], second[-len(first[1:]) :], strict=True)] == [True] * 3
    assert all(one is not first[0] for one in second)


SHARED: dict[str, dict[str, Any]] = {
    "the conditions of nodes are not reliable": {"own_node": ready_node("system", since=NOW - timedelta(seconds=5))},
    "an administrator adds a signal": {"added_signals": ()},
}


@pytest.mark.parametrize("change", SHARED.values(), ids=SHARED.keys())
def test_all_pods_are_read_again_if(change: dict[str, Any]) -> None:
    labelled = ready_node(NODE, ready=False) | {"metadata": {"name": NODE, "labels": {AVOID_SIGNAL.key: "true"}}}
    before, reader = edit_node(children(), labelled), PodReader()
    first = reader.read(before, NOW)
    after = replace(before, **change)

    assert reader.read(after, NOW) == read_pods(after, NOW) != first
    assert reader.read(before, NOW) == first


def test_a_deletion_becomes_overdue_without_a_change() -> None:
    deleted, reader = delete(children()), PodReader()
    assert not reader.read(deleted, NOW)[0].is_overdue

    assert reader.read(deleted, NOW + timedelta(seconds=60))[0].is_overdue


def test_the_time_since_a_pod_has_settled_passes() -> None:
    (pod, *_), created = read_pods(children(), NOW), NOW - timedelta(seconds=30)
    settled = replace(pod, settled=created)

    assert settled.settled_seconds(NOW) == 30.0
    assert settled.settled_seconds(created - timedelta(seconds=1)) == 0.0
    assert replace(pod, settled=None).settled_seconds(NOW) == 0.0


@given(st.lists(st.tuples(st.sampled_from([*EDITS]), st.integers(0, 200)), max_size=6))
def test_any_sequence_of_changes_is_read_as_without_a_reader(changes: list[tuple[str, int]]) -> None:
    known, reader, now = children(), PodReader(), NOW
    own_node = ready_node("system", since=NOW)  # the conditions of nodes become reliable after a while
    for name, seconds in [("an event changed nothing", 0), *changes]:
        known = replace(EDITS[name](known), own_node=own_node) if known.pods else known
        now += timedelta(seconds=seconds)
        assert reader.read(known, now) == read_pods(known, now)
