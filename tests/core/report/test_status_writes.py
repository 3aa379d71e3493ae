"""When a status is written, how much of it, and that it reads back."""

import json
from datetime import timedelta

from tests.support.builders import NOW, job_manifest, make_plan
from tests.support.scenes import fail, lose_node, trained
from trainingjob_api.data_report import DataReport, SourceReport
from trainingjob_api.status.fault_status import NodeProbation
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_api.status.world_status import Attempt
from trainingjob_operator.core.report.conditions import merge_conditions
from trainingjob_operator.core.report.status_writes import MAX_BYTES, shorten_to_limit, should_write
from trainingjob_operator.core.stored_status import read_status, write_status
from trainingjob_operator.core.times import format_time, seconds_between


def test_numbers_are_written_every_ten_seconds_and_transitions_at_once() -> None:
    scene = trained()
    scene.step(1.0)
    old = scene.status
    scene.train(step=12, committed=12)
    scene.step(5.0)
    assert should_write(old, scene.status, scene.now)  # the first commit
    old = scene.status

    scene.train(step=13, committed=13)
    scene.step(9.0)
    assert not should_write(old, scene.status, scene.now)
    scene.step(1.0)
    assert should_write(old, scene.status, scene.now)

    old = scene.status
    fail(scene, 1, 1).step()
    assert should_write(old, scene.status, scene.now)


def test_time_alone_is_never_worth_a_write() -> None:
    scene = trained()
    old = scene.status
    scene.step(1000.0)

    assert scene.status != old
    assert not should_write(old, scene.status, scene.now)


def test_messages_of_a_job_that_has_not_started_are_written() -> None:
    old = TrainingJobStatus(conditions=merge_conditions((), [("Valid", "True", "Valid", "planned")], 1, NOW))
    later = NOW + timedelta(seconds=5)
    conditions = merge_conditions(old.conditions, [("Valid", "True", "Valid", "planned; the queue is full")], 1, later)

    assert should_write(old, old.model_copy(update={"conditions": conditions}), later)
    assert not should_write(old, old, later)


def test_nodes_that_leave_one_after_another_cause_one_write() -> None:
    scene = trained()
    scene.step(1.0)
    old = scene.status
    lose_node(scene, 1, 0).step(1.0)
    lose_node(scene, 1, 1).step(1.0)
    assert [one.node for one in scene.status.probation] == ["node-1-0", "node-1-1"]
    assert not should_write(old, scene.status, scene.now)

    scene.step(10.0)
    assert should_write(old, scene.status, scene.now)


def test_a_status_never_outgrows_the_object() -> None:
    scene = trained(plan=make_plan(elastic={"maxRestarts": 1000, "nodeExclusion": "report"}))
    for number in range(25):
        fail(scene, 1, 1, message=f"{number} " + "x" * 1000, log="y" * 2048).step(10.0)
        scene.train(step=11, restored=10, committed=11, failure=None)
    status = scene.status
    assert status.world
    assert len(status.attempts) == 20
    assert size(status) <= MAX_BYTES
    logs = [attempt.cause.log for attempt in status.attempts[:-1] if attempt.cause]
    assert logs[0] == "", "the logs of old attempts go first"

    pods = tuple(f"pod-{number}/{'u' * 36}" for number in range(1000))
    for num_pods, attempts, kept in ((500, 5, 500), (900, 5, 0)):
        fuller = status.model_copy(update={"world": status.world.model_copy(update={"pods": pods[:num_pods]})})
        fuller = fuller.model_copy(update={"attempts": tuple(add_event(one) for one in status.attempts)})
        fitted = shorten_to_limit(fuller)
        assert fitted.world
        assert (len(fitted.attempts), len(fitted.world.pods)) == (attempts, kept)
        assert size(fitted) <= MAX_BYTES

    records = tuple(NodeProbation(node=f"{number:0253}", since="s", why="w" * 256) for number in range(64))
    crowded = shorten_to_limit(status.model_copy(update={"probation": records, "attempts": endless_attempts(status)}))
    assert crowded.probation == records[:8], "the next reconcile must not replace those that stay"

    sources = tuple(SourceReport(name="n", files=1, documents=1, characters=1) for _ in range(2))
    reported = DataReport(tokens=1, rows=1, epochs=1.0, sources=sources, warnings=("short",))
    full = status.model_copy(update={"attempts": tuple(add_event(one) for one in status.attempts), "data": reported})
    assert shorten_to_limit(full).data == reported.model_copy(update={"sources": ()}), (
        "what was read of each source goes early"
    )
    assert shorten_to_limit(status.model_copy(update={"data": reported})).data == reported

    endless = status.model_copy(
        update={"world": None, "attempts": tuple(add_event(one, 30000) for one in status.attempts)}
    )
    assert shorten_to_limit(endless).attempts == endless.attempts[-1:]


def endless_attempts(status: TrainingJobStatus) -> tuple[Attempt, ...]:
    return tuple(add_event(one) for one in status.attempts)


def size(status: TrainingJobStatus) -> int:
    return len(json.dumps(write_status(status), ensure_ascii=False).encode())


def add_event(attempt: Attempt, length: int = 4000) -> Attempt:
    return attempt.model_copy(update={"started": "s" * length})


def test_a_status_reads_back_as_it_was_written() -> None:
    status = trained().status

    assert read_status({"status": write_status(status)}) == status


def test_fields_that_make_no_sense_are_dropped_and_the_rest_is_kept() -> None:
    job = job_manifest(make_plan(), trained().status)
    job["status"] |= {"goodput": "much", "unheardOf": 1}

    status = read_status(job)

    assert status.goodput.seconds == {}
    assert status.world
    assert read_status({"status": "none"}) == TrainingJobStatus()


def test_fields_of_a_newer_operator_are_dropped_and_the_world_is_kept() -> None:
    job = job_manifest(make_plan(), trained().status)
    before = read_status(job)
    live = job["status"]["world"]["live"] | {"newField": 1}
    live["keep"] = live["keep"] | {"newField": {}, "stages": [{"every": 100, "newField": 2}]}
    job["status"]["world"]["live"] = live

    status = read_status(job)

    assert status.world
    assert before.world
    assert status.world.live
    assert status.world.live.save == (before.world.live and before.world.live.save)
    assert [stage.every for stage in status.world.live.keep.stages or ()] == [100]
    assert job["status"]["world"]["live"]["newField"] == 1, "the object of the API server stays as it is"
    job["status"]["world"]["generation"] = "x"
    assert read_status(job).world is None
    assert read_status(job).attempts == before.attempts


def test_times_are_parsed_and_invalid_ones_are_none() -> None:
    assert seconds_between(format_time(NOW), NOW + timedelta(seconds=1.5)) == 1.5
    assert seconds_between("2026-11-21T11:59:59", NOW) == 1.0
    assert seconds_between("yesterday", NOW) == 0.0
    assert seconds_between(None, NOW) == 0.0
    assert seconds_between(format_time(NOW), NOW - timedelta(hours=1)) == 0.0
