"""Going back for a bad step: where to, how often, and what it counts as."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.builders import make_plan
from tests.support.scenes import Scene, claim, drop_pod, fail, kind
from trainingjob_api.protocol import FailureReason, Progress
from trainingjob_api.status.world_status import Restarts
from trainingjob_api.world import Rollback
from trainingjob_operator.core.decide.decisions import Claim, Decision, EndWorld, Fail
from trainingjob_operator.core.goodput import Bucket
from trainingjob_operator.core.observe.members import rebuild_world
from trainingjob_operator.core.reasons import Reason

GO_BACK: dict[str, Any] = {"nonFinite": "rollback", "spikes": {"action": "rollback"}, "maxRollbacks": 2}


def trained(committed: int | None = 8, restored: int = 0, **protection: Any) -> Scene:
    """Return a job on two slices that goes back for bad steps, and has saved a step."""
    scene = Scene(plan=make_plan(protection=GO_BACK | protection)).form(0, 1, restored=restored)
    return scene.train(step=10, restored=restored, committed=committed)


def spoil(scene: Scene, step: int = 11, reason: FailureReason = FailureReason.NON_FINITE) -> Scene:
    """Let all members of the world report a bad step."""
    for number in scene.status.world.slices if scene.status.world else ():
        for host in range(scene.plan.shape.num_hosts):
            fail(scene, number, host, reason=reason, step=step, message=f"bad step {step}")
    return scene


def place_of(rollback: Rollback) -> tuple[int, int, int, int]:
    return rollback.lineage, rollback.generation, rollback.step, rollback.parent


@pytest.mark.parametrize("reason", [FailureReason.NON_FINITE, FailureReason.LOSS_SPIKE])
def test_next_world_rolls_back_to_the_newest_saved_step(reason: FailureReason) -> None:
    scene = spoil(trained(), reason=reason)

    world = claim(scene).world
    scene.step()

    assert [place_of(one) for one in world.rollbacks] == [(1, 1, 11, 8)]
    (reported,) = scene.status.rollbacks
    assert (place_of(reported), reported.reason, reported.message) == ((1, 1, 11, 8), reason, "bad step 11")
    assert scene.status.restarts == Restarts()
    assert scene.status.attempts[0].cause
    assert scene.status.attempts[0].cause.reason == reason
    assert scene.status.nodes == ()


PARENTS: dict[str, tuple[Scene, int]] = {
    "nothing was saved": (trained(committed=None), 0),
    "the step that the world went on from": (trained(committed=None, restored=6), 6),
    "a step that was saved later than the bad one counts for nothing": (trained(committed=14, restored=6), 6),
}


@pytest.mark.parametrize(("scene", "want"), PARENTS.values(), ids=PARENTS.keys())
def test_step_that_training_rolls_back_to(scene: Scene, want: int) -> None:
    (rollback,) = claim(spoil(scene)).world.rollbacks

    assert rollback.parent == want


def test_training_does_not_roll_back_to_a_snapshot() -> None:
    scene = trained(committed=8)
    scene.step()
    scene.train(step=10, restored=9, committed=None, tier="ram")

    (rollback,) = claim(spoil(scene)).world.rollbacks

    assert rollback.parent == 8


def test_all_worlds_after_a_rollback_contain_it_and_none_before() -> None:
    scene = trained()
    pods = scene.see().pods
    spoil(scene).step()
    after = rebuild_world(scene.status, "uid", pods)
    scene.train(step=12, restored=8, failure=None)
    scene.step()

    following = claim(drop_pod(scene, 1, 1)).world

    assert after is not None
    assert [place_of(one) for one in after.rollbacks] == [(1, 1, 11, 8)]
    assert following.rollbacks == after.rollbacks
    before = scene.status.model_copy(
        update={"world": scene.status.world and scene.status.world.model_copy(update={"generation": 1}), "attempts": ()}
    )
    earlier = rebuild_world(before, "uid", pods)
    assert earlier is not None
    assert earlier.rollbacks == ()


def test_rollback_is_kept_while_no_world_can_be_formed() -> None:
    scene = spoil(Scene(plan=make_plan(2, 2, protection=GO_BACK)).form(0, 1).train(step=10, committed=8))
    drop_pod(scene, 1, 0)
    scene.hear(0, 0, still=2.0)

    assert isinstance(scene.step(), EndWorld)
    assert [place_of(one) for one in scene.status.rollbacks] == [(1, 1, 11, 8)]
    scene.place(1)
    scene.hear(1, 0, still=100.0)

    assert [place_of(one) for one in claim(scene).world.rollbacks] == [(1, 1, 11, 8)]


def test_too_many_rollbacks_fail_the_job_with_a_message() -> None:
    scene = trained()
    for _ in range(2):
        assert isinstance(spoil(scene).step(), Claim)
        scene.train(step=10, restored=8, failure=None)
        scene.step()

    last = spoil(scene).step()

    assert isinstance(last, Fail)
    assert (last.reason, last.message) == (
        Reason.MAX_ROLLBACKS_EXCEEDED,
        (
            "another rollback would exceed `spec.protection.maxRollbacks` (2) after 2 rollbacks. "
            "Failure at step 11: bad step 11"
        ),
    )
    assert len(scene.status.rollbacks) == 2
    assert scene.status.restarts == Restarts()


ORDINARY: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[object, ...]]] = {
    "the job is to skip": ({"nonFinite": "skip"}, {}, (Claim, (0, 1), "NonFinite", True)),
    "the job looks for no spikes": (
        {"spikes": None},
        {"reason": FailureReason.LOSS_SPIKE},
        (Claim, (0, 1), "LossSpike", True),
    ),
    "a crash": ({}, {"reason": FailureReason.CRASH}, (Claim, (0, 1), "Crash", True)),
    "nobody knows at which step": ({}, {"step": None}, (Claim, (0, 1), "NonFinite", True)),
    "the job is to stop": ({"nonFinite": "stop"}, {"fatal": True}, (Fail, "NonFinite")),
}


@pytest.mark.parametrize(("protection", "changes", "want"), ORDINARY.values(), ids=ORDINARY.keys())
def test_other_ends_roll_nothing_back(
    protection: dict[str, Any], changes: dict[str, Any], want: tuple[object, ...]
) -> None:
    scene = fail(trained(**protection), 1, 1, **{"reason": FailureReason.NON_FINITE, "step": 11, **changes})

    assert kind(scene.step()) == want
    assert scene.status.rollbacks == ()


def test_rollback_is_one_event_and_its_steps_count_as_lost() -> None:
    scene = trained()
    scene.step(30.0)
    spoil(scene)
    reported = [one for one in scene.happenings() if one.reason == Reason.ROLLED_BACK]

    assert [(one.message, one.is_warning) for one in reported] == [
        (
            ("rolled back from step 11 to step 8: bad step 11. Lineage 1 continues without the samples of 3 steps"),
            True,
        )
    ]
    assert "NonFinite" not in {one.reason for one in scene.happenings()}
    scene.step()
    assert Reason.ROLLED_BACK not in {one.reason for one in scene.happenings()}
    assert scene.status.phase == "Recovering"
    scene.train(step=9, restored=8, failure=None)
    scene.step(20.0)
    assert scene.status.attempts[-1].lost_steps == 2
    assert scene.status.goodput.seconds[Bucket.LOST_STEPS] > 0


events = st.lists(
    st.tuples(st.sampled_from(["train", "save", "spoil", "spoil", "crash"]), st.integers(1, 5)), max_size=14
)


class Story:
    """A job that trains and saves, and whose worlds end for bad steps and other reasons."""

    def __init__(self) -> None:
        elastic = {"nodeExclusion": "report", "maxRestarts": 1000, "maxRestartsWithoutCommit": 1000}
        self.scene = Scene(plan=make_plan(protection=GO_BACK, elastic=elastic)).form(0, 1, step=1)
        self.step, self.saved, self.restored, self.crashes = 1, 0, 0, 0

    def happen(self, event: str, length: int) -> Decision | None:  # None: the world goes on
        """Apply a random event; return the decision after the end of a world."""
        self.step += 0 if event == "save" else length
        self.saved = self.step if event == "save" else self.saved
        committed = self.saved if self.saved > self.restored else None
        progress = Progress(step=self.step, step_seconds=0.5)
        self.scene.train(step=self.step, restored=self.restored, failure=None, progress=progress, committed=committed)
        self.scene.step()
        if event == "spoil":
            return spoil(self.scene, self.step).step()
        if event == "crash":
            self.crashes += 1
            fail(self.scene, 0, 0, message=f"ValueError: {self.crashes}", step=self.step)
            decision = self.scene.step()
            return self.scene.step(400.0) if isinstance(decision, EndWorld) else decision
        return None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(events)
def test_every_rollback_leads_to_a_saved_step(happenings: Sequence[tuple[str, int]]) -> None:
    job = Story()
    for event, length in happenings:
        before = job.scene.status.rollbacks
        decision = job.happen(event, length)
        after = job.scene.status.rollbacks
        if isinstance(decision, Fail):
            assert (event, len(before), after) == ("spoil", 2, before)
            break
        if decision is None:
            continue
        assert isinstance(decision, Claim)
        assert decision.world.rollbacks == after
        assert after[: len(before)] == before
        assert [one.parent for one in after[len(before) :]] == ([job.saved] if event == "spoil" else [])
        job.step = job.restored = job.saved
    assert job.scene.status.restarts.counted == job.crashes
    assert [one.lineage for one in job.scene.status.rollbacks] == [1, 2][: len(job.scene.status.rollbacks)]
