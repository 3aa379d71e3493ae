"""What a status keeps of an ended world is not exported as present."""

from datetime import timedelta
from typing import Any

import pytest

from tests.support.job_metrics import AFTER, START, STATUS, J, Jobs, labelled
from tests.support.simulation import Simulation
from trainingjob_operator.core.manifests import Manifest
from trainingjob_operator.core.times import format_time
from trainingjob_operator.shell.present_world import count_present_slices, is_training

SPEEDS = (
    "trainingjob_tokens_per_second",
    "trainingjob_step_seconds",
    "trainingjob_mfu_ratio",
    "trainingjob_data_loading_ratio",
    "trainingjob_straggler_ratio",
)
ENDED = {"attempts": [{"generation": 3, "ended": AFTER}]}
FAILING = {"failingSaves": {"step": 1}, "failingCopies": {"step": 1}, "failingExports": {"step": 1}}
FAILING_METRICS = ("trainingjob_checkpoint_failing", "trainingjob_backup_failing", "trainingjob_export_failing")
WITHOUT_WORLD: dict[str, dict[str, Any]] = {
    "suspended": {"phase": "Suspended", **ENDED},
    "queued again": {"phase": "Queued", **ENDED},
    "without nodes": {"phase": "Recovering", **ENDED},
    "succeeded early": {"phase": "Succeeded", "completionTime": AFTER},
    "failed because no step could be saved": {"phase": "Failed", "completionTime": AFTER},
}


@pytest.mark.parametrize("status", WITHOUT_WORLD.values(), ids=WITHOUT_WORLD.keys())
def test_a_job_without_a_world_has_no_slices_no_speed_and_no_failing_writes(status: dict[str, Any]) -> None:
    jobs = Jobs()
    jobs.put(**STATUS | FAILING | status)

    assert jobs.read("trainingjob_slices") == labelled(0, **J)
    assert jobs.read("trainingjob_phase") == labelled(1, phase=status["phase"], **J)
    assert [name for name in (*SPEEDS, *FAILING_METRICS) if jobs.read(name)] == []
    assert jobs.read("trainingjob_step") == labelled(120, **J)


def test_a_world_that_forms_has_slices_and_no_speed() -> None:
    jobs = Jobs()
    jobs.put(**STATUS | {"phase": "Recovering", "attempts": [{"generation": 2, "ended": AFTER}, {"generation": 3}]})

    assert jobs.read("trainingjob_slices") == labelled(2, **J)
    assert [name for name in SPEEDS if jobs.read(name)] == []
    assert jobs.read("trainingjob_checkpoint_failing") == labelled(0, **J)


def test_slices_of_replicas_are_those_whose_world_lives() -> None:
    worlds = [{"slice": 0, "world": {}}, {"slice": 1, "world": {}, "ended": AFTER}, {"slice": 2, "world": {}}]

    assert count_present_slices({"status": STATUS | {"replicas": worlds}}) == 2


ODD: dict[str, Any] = {"no status": None, "slices are a number": {"world": {"slices": 3}}, "a list": [1]}


@pytest.mark.parametrize("status", ODD.values(), ids=ODD.keys())
def test_odd_statuses_have_no_world(status: Any) -> None:
    assert count_present_slices({"status": status}) == 0


def test_the_end_of_a_job_has_a_time() -> None:
    jobs = Jobs()
    jobs.put(**STATUS)
    assert jobs.read("trainingjob_completion_timestamp_seconds") == {}

    jobs.put(**STATUS | {"phase": "Failed", "completionTime": format_time(START)})

    assert jobs.read("trainingjob_completion_timestamp_seconds") == labelled(START.timestamp(), **J)


def test_tokenized_text_is_a_metric() -> None:
    jobs = Jobs()
    jobs.put(phase="Preparing", preparation={"doneBytes": 5, "totalBytes": 9, "tokens": 7})

    assert jobs.read("trainingjob_prepared_bytes") == labelled(5, **J)
    assert jobs.read("trainingjob_prepared_tokens") == labelled(7, **J)

    failed = {"phase": "Failed", "completionTime": format_time(START)}
    jobs.put(**failed, preparation={"doneBytes": 5, "totalBytes": 9, "tokens": 7})
    assert jobs.read("trainingjob_prepared_bytes") == jobs.read("trainingjob_prepared_tokens") == {}


def test_a_node_is_bad_for_a_day_also_if_the_status_stays() -> None:
    jobs = Jobs()
    until = format_time(START + timedelta(days=1))
    jobs.put(**STATUS | {"phase": "Failed", "nodes": [{"node": "a", "faults": 2, "until": until}]})
    assert jobs.read("trainingjob_bad_nodes") == labelled(1, **J)

    jobs.now += timedelta(days=1)

    assert jobs.read("trainingjob_bad_nodes") == labelled(0, **J)


def observed(sim: Simulation) -> tuple[str, int, bool]:
    job: Manifest = sim.job
    return job["status"]["phase"], count_present_slices(job), is_training(job)


async def test_the_slices_of_a_job_through_its_life() -> None:
    sim = Simulation(total=60)
    await sim.run_until_step(10)
    assert observed(sim) == ("Running", 2, True)

    sim.edit(suspend=True)
    await sim.run(40, until="Suspended")
    assert observed(sim) == ("Suspended", 0, False)

    sim.edit(suspend=False)
    await sim.run_until_step(20)
    for name in sim.cluster.nodes:
        sim.kill_node(name)
    await sim.run(200)
    assert (*observed(sim), sim.status.display.slices) == ("Recovering", 0, False, "0/2")

    for name in sim.cluster.nodes:
        sim.restore_node(name)
    await sim.run(300, until="Succeeded")
    assert observed(sim) == ("Succeeded", 0, False)


def waiting(**status: Any) -> dict[str, Any]:
    """Return the status of a job that has waited for nodes since the last write."""
    spent = {"current": "down", "ratio": 0.75, "seconds": {"training": 75.0, "down": 25.0}}
    return STATUS | {"phase": "Recovering", "startTime": format_time(START), "goodput": spent} | status


def test_seconds_since_the_written_status_count_as_the_present_activity() -> None:
    jobs = Jobs()
    jobs.now = START + timedelta(seconds=300)
    jobs.put(**waiting())

    assert jobs.read("trainingjob_goodput_seconds") == labelled(75, bucket="training", **J) | labelled(
        225, bucket="down", **J
    )
    assert jobs.read("trainingjob_goodput_ratio") == labelled(0.25, **J)


def test_seconds_of_a_job_that_is_over_stay() -> None:
    jobs = Jobs()
    jobs.now = START + timedelta(seconds=300)
    jobs.put(
        **waiting(completionTime=AFTER) | {"goodput": {"ratio": 0.75, "seconds": {"training": 75.0, "down": 25.0}}}
    )

    assert sum(jobs.read("trainingjob_goodput_seconds").values()) == 100
    assert jobs.read("trainingjob_goodput_ratio") == labelled(0.75, **J)


def test_a_job_that_has_not_trained_has_no_second_of_training() -> None:
    jobs = Jobs()
    jobs.put(phase="Queued", goodput={"seconds": {"queued": 5.0}})
    jobs.put("new")

    assert jobs.read("trainingjob_goodput_seconds") == labelled(0, bucket="training", **J) | labelled(
        5, bucket="queued", **J
    )
