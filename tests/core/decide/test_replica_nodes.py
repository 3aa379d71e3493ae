"""Slices as replicas on bad nodes: a slice moves to other nodes while the others train."""

from tests.support.builders import failure, make_plan, ready_node
from tests.support.replica_scenes import ReplicaScene, kinds_of, names, replicated
from trainingjob_api.protocol import Phase
from trainingjob_operator.core.decide.child_maintenance import CreateSlice, DeleteJobSet
from trainingjob_operator.core.times import format_time

PLAN = replicated(make_plan(1, 2))


def fail_twice(now: ReplicaScene, slice_number: int, host: int = 1) -> list[str]:
    """Let a host of a slice end two worlds, and return the last decision about each slice."""
    for message in ("ValueError: a", "ValueError: b"):
        now.run(0, 1, step=20, committed=20)
        now.step()
        now.hear(slice_number, host, phase=Phase.FAILED, failure=failure(message=message))
        last = names(kinds_of(now))
        now.hear_slice(slice_number, phase=Phase.IDLE, generation=0, failure=None, still=1000.0)
    return last


def test_slice_on_a_bad_node_moves_and_the_others_continue() -> None:
    now = ReplicaScene(plan=PLAN).start(0, 1)
    assert fail_twice(now, 1) == ["Training", "EndWorld"]
    assert now.status.replicas[1].reason == "BadNode"
    assert names(kinds_of(now)) == ["Training", "BadNode"]
    (away,) = (chore for chore in now.chores() if isinstance(chore, DeleteJobSet))
    assert away.jobset.slices == range(1, 2)

    del now.jobsets[1], now.pods[1, 0], now.pods[1, 1]
    assert CreateSlice(1, ("node-1-1",)) in now.chores()


def test_only_host_of_a_slice_counts_against_its_node_while_others_train() -> None:
    plan = replicated(make_plan(1, 2, hosts=1))
    now = ReplicaScene(plan=plan).start(0, 1)
    assert fail_twice(now, 1, host=0) == ["Training", "EndWorld"]
    now = ReplicaScene(plan=plan).start(1)
    now.hear(1, 0, phase=Phase.FAILED, failure=failure())
    now.step()
    assert now.status.nodes == (), "the cause may be the program"


def test_slice_on_a_bad_node_stays_if_the_job_needs_it() -> None:
    now = ReplicaScene(plan=PLAN).start(0, 1)
    assert fail_twice(now, 0) == ["Claim", "Training"], "slices of the first JobSet cannot move"
    now = ReplicaScene(plan=replicated(make_plan(2, 2))).start(0, 1)
    assert fail_twice(now, 1) == ["Training", "Claim"]


def test_nodes_of_all_slices_count_from_their_return() -> None:
    """The views of slices share the records of nodes. Each change is recorded once."""
    now = ReplicaScene(plan=PLAN).start(0, 1)
    for name in ("node-0-1", "node-1-0"):
        now.nodes[name] = ready_node(name, ready=False)
    now.step()
    assert [(one.node, one.away) for one in now.status.probation] == [("node-0-1", True), ("node-1-0", True)]

    now.nodes["node-1-0"] = ready_node("node-1-0")
    now.step(30 * 3600.0)
    returned = [(one.node, one.away, one.since) for one in now.status.probation]
    assert returned[1] == ("node-1-0", False, format_time(now.now))
    assert returned[0][:2] == ("node-0-1", True)
