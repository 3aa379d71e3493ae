"""What of a spec may change from one world to the next, and how a world carries it."""

from typing import Any

import pytest

from tests.support.builders import make_plan, spec_manifest
from trainingjob_api.live import describe_changes, live_fields, with_live_fields
from trainingjob_api.spec.checkpoint import Snapshots
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import JobIdentity, RunConfig, World

TEXTS = [{"name": name, "path": "/data/held-out", "everySteps": 10} for name in ("news", "code")]


def spec(
    *,
    steps: int | None = 100,
    epochs: float | None = None,
    news: int = 10,
    stop: tuple[str, float] | None = None,
    **checkpoint: Any,
) -> TrainingJobSpec:
    manifest = spec_manifest(evaluation=[{**TEXTS[0], "everySteps": news}, TEXTS[1]])
    manifest["training"] |= {"steps": steps, "epochs": epochs}
    if stop:
        manifest["training"]["stopAtLoss"] = dict(zip(("evaluation", "loss"), stop, strict=True))
    manifest["checkpoint"].update(checkpoint)
    return TrainingJobSpec.model_validate(manifest)


CHANGES: dict[str, tuple[TrainingJobSpec, list[str]]] = {
    "nothing": (spec(), []),
    "steps": (spec(steps=2000), ["spec.training.steps is 2,000, was 100"]),
    "epochs": (
        spec(steps=None, epochs=2),
        ["spec.training.steps is unset, was 100", "spec.training.epochs is 2, was unset"],
    ),
    "saves": (spec(save={"everySteps": 7}), ["spec.checkpoint.save.everySteps is 7, was 500"]),
    "saves by time": (
        spec(save={"everySteps": 500, "every": "10m"}),
        ["spec.checkpoint.save.every is 10m, was unset"],
    ),
    "what is kept": (
        spec(keep={"last": 9, "stages": [{"every": 1000, "until": 4000}, {"every": 2000}]}),
        [
            "spec.checkpoint.keep.last is 9, was 3",
            "spec.checkpoint.keep.stages is [{every: 1,000, until: 4,000}, {every: 2,000, until: unset}], was unset",
        ],
    ),
    "what is best": (
        spec(keep={"best": {"evaluation": "news", "count": 2}}),
        ["spec.checkpoint.keep.best is {evaluation: news, count: 2}, was unset"],
    ),
    "a loss to stop at": (
        spec(stop=("news", 2.5)),
        ["spec.training.stopAtLoss is {evaluation: news, loss: 2.5}, was unset"],
    ),
    "evaluations": (spec(news=20), ["spec.evaluation[news].everySteps is 20, was 10"]),
}


@pytest.mark.parametrize(("after", "want"), CHANGES.values(), ids=CHANGES.keys())
def test_live_changes_are_described_and_merged(after: TrainingJobSpec, want: list[str]) -> None:
    before = spec(save={"everySteps": 500})

    assert describe_changes(live_fields(before), live_fields(after)) == want
    assert with_live_fields(before, live_fields(after)) == with_live_fields(after, live_fields(after))


def test_a_loss_to_stop_at_can_be_removed() -> None:
    before, after = live_fields(spec(stop=("news", 2.5))), live_fields(spec())

    assert describe_changes(before, after) == ["spec.training.stopAtLoss is unset, was {evaluation: news, loss: 2.5}"]
    assert "stop" not in after.model_dump()


def test_world_values_override_values_of_the_pods() -> None:
    plan = make_plan()
    small, large = plan.layout(1), plan.layout(2)
    config = RunConfig(
        job=JobIdentity(name="a", namespace="b", uid="c"), spec=spec(), accelerator_platform="cpu", layouts=(small,)
    )
    world = World(generation=1, job_uid="c", coordinator="10.0.0.1:1", members=())
    other = world.model_copy(update={"layout": small.model_copy(update={"rows_per_shard": 9})})
    edited = world.model_copy(
        update={
            "layout": large,
            "remat": "full",
            "offload": ("optimizer",),
            "snapshots": 7,
            "live": live_fields(spec(steps=7)),
        }
    )

    assert config.for_world(world) == config
    assert config.for_world(edited).layouts == (small, large)
    assert config.for_world(other).layouts == (other.layout,)
    assert config.for_world(edited).spec.training == spec(steps=7).training
    assert config.for_world(edited).spec.memory.remat == "full"
    assert config.for_world(edited).spec.memory.offload == ("optimizer",)
    on_device = world.model_copy(update={"offload": ()})
    assert config.for_world(edited).for_world(on_device).spec.memory.offload is None
    assert config.for_world(edited).for_world(world).spec.memory.offload == ("optimizer",)
    assert config.for_world(edited).spec.checkpoint.snapshots is None
    with_snapshots = config.model_copy(update={"spec": spec(snapshots={"everySteps": 5})})
    assert with_snapshots.for_world(world).spec.checkpoint.snapshots == Snapshots(every_steps=5)
    assert with_snapshots.for_world(edited).spec.checkpoint.snapshots == Snapshots(every_steps=7)


LENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "more steps": ({"steps": 100}, {"steps": 101}, True),
    "as many steps": ({"steps": 100}, {"steps": 100}, False),
    "more epochs": ({"epochs": 2}, {"epochs": 2.5}, True),
    "as many epochs": ({"epochs": 2}, {"epochs": 2}, False),
    "fewer epochs": ({"epochs": 2}, {"epochs": 1}, False),
    "epochs instead of steps": ({"steps": 100}, {"epochs": 1}, True),
    "steps instead of epochs, and more of them": ({"epochs": 2}, {"steps": 91}, True),
    "steps instead of epochs, and as many": ({"epochs": 2}, {"steps": 90}, False),
}


@pytest.mark.parametrize(("before", "after", "want"), LENGTHS.values(), ids=LENGTHS)
def test_a_job_trains_on_that_may_have_more_steps(before: dict[str, Any], after: dict[str, Any], want: bool) -> None:
    old, new = (live_fields(spec(**{"steps": None, **length})) for length in (before, after))

    assert new.lets_resume(old, 90, 90, {}) is want


@pytest.mark.parametrize(("total", "want"), [(None, False), (90, False), (91, True)])
def test_a_job_with_epochs_ended_at_a_loss_before_its_last_step(total: int | None, want: bool) -> None:
    live = live_fields(spec(steps=None, epochs=2, stop=("news", 2.5)))

    assert live.is_stopped(90, total) is want
    lower = live_fields(spec(steps=None, epochs=2, stop=("news", 2.0)))
    assert lower.lets_resume(live, 90, total, {"news": 2.4}) is want
