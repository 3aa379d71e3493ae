"""The job of a local run: what of the spec holds here, and how a run takes up an earlier one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.builders import make_plan, spec_manifest
from trainingjob_api.live import live_fields
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli.errors import CommandError
from trainingjob_operator.cli.local.local_spec import external_variables, localize_spec
from trainingjob_operator.cli.local.resume import has_succeeded, new_job, resume_job
from trainingjob_operator.core.stored_status import read_status, write_status
from trainingjob_operator.core.validation.validate import validate_job

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WORLD = {"generation": 3, "slices": [0], "coordinator": "h:1", "members": "x", "since": "2026-11-21T12:00:00Z"}
MEMORY = {
    "world": WORLD,
    "lineage": [{"generation": 1, "first": 1, "last": 40}, {"generation": 3, "first": 41}],
    "checkpoint": {"step": 60, "time": "2026-11-21T12:00:00Z"},
    "progress": {"step": 60, "of": 100},
}


def make_spec(**sections: Any) -> TrainingJobSpec:
    return TrainingJobSpec.model_validate(spec_manifest(**sections))


def test_settings_of_a_cluster_are_omitted() -> None:
    spec = make_spec(
        scheduling={"queueName": "q"},
        suspend=True,
        ttlSecondsAfterFinished=60,
        runtime={
            "image": "x",
            "serviceAccountName": "s",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "secretKeyRef": {"name": "s", "key": "k"}}],
            "volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}],
        },
    )

    raw = localize_spec(spec, None)

    assert {"scheduling", "suspend", "ttlSecondsAfterFinished"}.isdisjoint(raw)
    assert {"image", "serviceAccountName"}.isdisjoint(raw["runtime"])
    assert raw["runtime"]["env"] == [{"name": "A", "value": "1"}]
    assert [(path, variable.name) for path, variable in external_variables(spec)] == [("runtime.env[1]", "B")]


def test_a_spec_stays_valid_and_means_the_same() -> None:
    spec = make_spec()

    checked = validate_job("demo", localize_spec(spec, None))

    assert checked.spec == spec


LIMITS = {
    "elastic, fewer than its most": ({"min": 1, "max": 4}, 2, {"min": 1, "max": 2}),
    "elastic, fewer than its least": ({"min": 3, "max": 4}, 2, {"min": 2, "max": 2}),
    "some sizes alone": (
        {"min": 1, "max": 4, "allowed": (1, 2, 4)},
        2,
        {"min": 1, "max": 2, "allowed": [1, 2]},
    ),
    "some sizes alone, fewer than the least": (
        {"min": 2, "max": 4, "allowed": (2, 4)},
        1,
        {"min": 1, "max": 1, "allowed": [1]},
    ),
    "fixed": ({"count": 4}, 2, {"count": 2}),
}


@pytest.mark.parametrize(("slices", "num_slices", "want"), LIMITS.values(), ids=LIMITS.keys())
def test_slices_are_limited(slices: dict[str, int], num_slices: int, want: dict[str, int]) -> None:
    raw = localize_spec(make_spec(slices={"accelerator": "cpu", "topology": "2x2", **slices}), num_slices)

    assert raw["slices"] == {"accelerator": "cpu", "topology": "2x2", **want}


def make_job(**status: Any) -> dict[str, Any]:
    job = new_job("demo", localize_spec(make_plan().spec, None), "u", NOW)
    return {**job, "status": write_status(TrainingJobStatus.model_validate(status))}


SUCCEEDED_PROGRAMS = {
    "a command": ({"command": ["python"]}, True),
    "an entrypoint, whose job has more steps now": ({"entrypoint": "losses:customize"}, False),
}


@pytest.mark.parametrize(("program", "is_done"), SUCCEEDED_PROGRAMS.values(), ids=SUCCEEDED_PROGRAMS.keys())
def test_only_a_command_decides_when_its_job_has_succeeded(program: dict[str, Any], is_done: bool) -> None:
    job = make_job(phase="Succeeded", progress={"step": 12, "of": 12})
    training = {**job["spec"].get("training", {}), "steps": 20}

    assert has_succeeded({**job, "spec": {**job["spec"], "program": program, "training": training}}) is is_done


def test_stopped_job_resumes_and_the_stop_is_no_lost_time() -> None:
    job = make_job(**MEMORY, phase="Running", goodput={"seconds": {"training": 9}, "current": "training"})

    taken = resume_job(job, job["spec"])

    status = read_status(taken)
    assert taken["metadata"]["generation"] == 2
    assert status.goodput.current == "suspended"
    assert status.model_copy(update={"goodput": read_status(job).goodput}) == read_status(job)


def test_failed_job_can_be_retried_and_keeps_its_measurements() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "Crash", "lastTransitionTime": "2026-11-21T12:00:00Z"}
    job = make_job(
        **MEMORY,
        phase="Failed",
        conditions=[failed],
        completionTime="2026-11-21T12:00:00Z",
        restarts={"total": 11, "counted": 11},
    )

    assert read_status(resume_job(job, job["spec"])) == TrainingJobStatus.model_validate(MEMORY)


def test_success_is_permanent() -> None:
    job = make_job(phase="Succeeded", completionTime="2026-11-21T12:00:00Z")

    assert resume_job(job, job["spec"]) == job
    assert has_succeeded(make_job(phase="Succeeded"))
    assert not has_succeeded(make_job(phase="Failed"))
    assert not has_succeeded(make_job())


@pytest.mark.parametrize("phase", ["Running", "Succeeded"])
def test_another_job_cannot_resume_from_this_state(phase: str) -> None:
    job = make_job(**MEMORY, phase=phase)
    changed = localize_spec(make_spec(training={"steps": 200, "globalBatchSize": 16, "sequenceLength": 32}), 1)
    changed["optimizer"]["learningRate"] = 0.5

    with pytest.raises(CommandError) as caught:
        resume_job(job, changed)

    assert str(caught.value) == (
        "the job differs from the one that was started in this folder:\n"
        "  spec.optimizer.learningRate: 0.5, was 0.001\n"
        "Revert the change, restart with --fresh, or use another folder with --dir."
    )


LIVE: dict[str, dict[str, Any]] = {
    "more steps": {"training": {"steps": 200, "globalBatchSize": 16, "sequenceLength": 32}},
    "fewer steps": {"training": {"steps": 50, "globalBatchSize": 16, "sequenceLength": 32}},
    "saves": {"checkpoint": {"uri": "/shared/runs/demo", "save": {"everySteps": 7}, "keep": {"last": 9}}},
    "restarts": {"elastic": {"maxRestarts": 3}},
}


@pytest.mark.parametrize("sections", LIVE.values(), ids=LIVE.keys())
def test_mutable_fields_are_mutable_locally(sections: dict[str, Any]) -> None:
    job = make_job(**MEMORY, phase="Running")
    changed = localize_spec(make_spec(**sections), 1)

    assert resume_job(job, changed)["spec"] == changed


FIXED: dict[str, dict[str, Any]] = {
    "lora.alpha": {"lora": {"rank": 2, "alpha": 4, "targets": ["*.attention.query"]}},
    "training.seed": {"training": {"steps": 100, "globalBatchSize": 16, "sequenceLength": 32, "seed": 9}},
    "training.globalBatchSize": {"training": {"steps": 100, "globalBatchSize": 32, "sequenceLength": 32}},
    "training.sequenceLength": {"training": {"steps": 100, "globalBatchSize": 16, "sequenceLength": 16}},
    "optimizer.weightDecay.rate": {"optimizer": {"learningRate": 0.001, "weightDecay": {"rate": 0.7}}},
    "schedule.type": {"schedule": {"type": "constant"}},
    "precision.compute": {"precision": {"compute": "float32"}},
    "tokenizer.type": {"tokenizer": {"type": "tokenizers", "path": "/shared/t.json"}},
    "objective.type": {"objective": {"type": "sft"}},
    "data.train": {"data": {"train": [{"name": "text", "path": "/shared/other"}]}},
    "checkpoint.initializeFrom.uri": {
        "checkpoint": {"uri": "/shared/runs/demo", "initializeFrom": {"uri": "/shared/base"}}
    },
    "parallelism.replicas.syncEvery": {"parallelism": {"replicas": {"syncEvery": 10}}},
}


@pytest.mark.parametrize(("field", "sections"), FIXED.items(), ids=FIXED.keys())
def test_immutable_fields_are_immutable_locally(field: str, sections: dict[str, Any]) -> None:
    job = make_job(**MEMORY, phase="Running")

    with pytest.raises(CommandError, match=rf"\n  spec\.{field}: "):
        resume_job(job, localize_spec(make_spec(**sections), 1))


def test_a_job_without_a_saved_step_may_start_from_another_model() -> None:
    """The first run may have failed because there was no such folder."""
    job = make_job(**MEMORY | {"checkpoint": None}, phase="Failed")
    changed = localize_spec(
        make_spec(checkpoint={"uri": "/shared/runs/demo", "initializeFrom": {"uri": "/shared/base"}}), 1
    )

    assert resume_job(job, changed)["spec"] == changed


def test_completed_job_resumes_with_more_steps() -> None:
    progress = {"step": 100, "of": 100, "percent": 100}
    job = make_job(**MEMORY | {"progress": progress}, phase="Succeeded", completionTime="2026-11-21T12:00:00Z")
    more = localize_spec(make_spec(training={"steps": 200, "globalBatchSize": 16, "sequenceLength": 32}), 1)
    fewer = localize_spec(make_spec(training={"steps": 50, "globalBatchSize": 16, "sequenceLength": 32}), 1)

    taken = resume_job(job, more)

    assert not has_succeeded(taken)
    assert read_status(taken).completion_time is None
    assert read_status(taken).world == read_status(job).world
    assert taken["spec"]["training"]["steps"] == 200
    assert resume_job(job, fewer) == job


STOP = {"evaluation": "held-out", "loss": 2.5}
STOPPED: dict[str, tuple[dict[str, Any], bool]] = {
    "nothing changed": ({"steps": 100, "stopAtLoss": STOP}, True),
    "more steps": ({"steps": 200, "stopAtLoss": STOP}, True),
    "a lower loss": ({"steps": 100, "stopAtLoss": {**STOP, "loss": 2.2}}, False),
    "no loss": ({"steps": 100}, False),
}


@pytest.mark.parametrize(("training", "want"), STOPPED.values(), ids=STOPPED.keys())
def test_job_that_ended_at_a_loss_resumes_if_an_edit_lets_it(training: dict[str, Any], want: bool) -> None:
    sizes = {"globalBatchSize": 16, "sequenceLength": 32}
    texts = [{"name": "held-out", "path": "/shared/held-out", "everySteps": 10}]
    before, after = (
        make_spec(training={**sizes, **one}, evaluation=texts) for one in ({"steps": 100, "stopAtLoss": STOP}, training)
    )
    progress = {"step": 60, "of": 100, "percent": 60, "evaluations": {"held-out": 2.4}}
    world = {**WORLD, "live": live_fields(before).model_dump(by_alias=True)}
    job = make_job(**MEMORY | {"progress": progress, "world": world}, phase="Succeeded")
    job["spec"] = localize_spec(before, None)

    assert has_succeeded(resume_job(job, localize_spec(after, None))) is want


@pytest.mark.parametrize(("epochs", "want"), [(2, True), (3, False), (1.5, True)])
def test_job_that_trained_its_epochs_resumes_with_more(epochs: float, want: bool) -> None:
    sizes = {"globalBatchSize": 16, "sequenceLength": 32}
    before, after = (make_spec(training={**sizes, "epochs": number}) for number in (2, epochs))
    world = {**WORLD, "live": live_fields(before).model_dump(by_alias=True)}
    job = make_job(**MEMORY | {"progress": {"step": 60, "of": 60, "percent": 100}, "world": world}, phase="Succeeded")
    job["spec"] = localize_spec(before, None)

    assert has_succeeded(resume_job(job, localize_spec(after, None))) is want


def test_job_that_ended_early_for_an_unknown_reason_resumes() -> None:
    job = make_job(**MEMORY | {"progress": {"step": 60, "of": 100, "percent": 60}}, phase="Succeeded")

    assert not has_succeeded(job)


def test_fields_independent_of_saved_state_may_change() -> None:
    job = make_job(**MEMORY)
    changed = localize_spec(make_spec(checkpoint={"uri": "/shared/runs/demo", "save": {"everySteps": 7}}), 1)

    assert resume_job(job, changed)["spec"] == changed
