"""Real trainer processes that wait in a hot standby world and take over, beside one that trains."""

import json
from pathlib import Path

import jax
import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.distillation import distillation
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from tests.support.trainer.training import spec_with
from trainingjob_api.protocol import Phase
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Rollback, RunConfig, Span, World
from trainingjob_trainer.aot.hot_standby import _count_local_bytes, _make_zeros
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.step import StepPrograms

BATCH = 4
SAVE_EVERY, SNAPSHOT_EVERY = 20, 10
CURVES_APART = 1e-4
WHOLE_LIFE = [Phase.CONNECTING, Phase.PREPARING, Phase.RESTORING, Phase.COMPILING, Phase.TRAINING]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared/checkpoints"


def make(root: Path, text: Path, *, steps: int = 100_000, **checkpoint: object) -> RunConfig:
    kept = {"uri": str(root), "save": {"everySteps": SAVE_EVERY}, "keep": {"last": 1000}, **checkpoint}
    held_out = [{"name": "news", "path": str(text), "everySteps": 1000}]
    return make_config(make_spec(root, text, checkpoint=kept, training__steps=steps, evaluation=held_out))


def shadow_of(num_hosts: int) -> World:
    return make_world(1, num_hosts).model_copy(update={"shadow": "it"})


def taken_over(shadow: World, world: World) -> World:
    return world.model_copy(update={"shadow": shadow.shadow, "coordinator": shadow.coordinator})


def test_a_dry_step_needs_memory_for_the_teacher_too() -> None:
    layout = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=8), rows_per_shard=1)
    steps = StepPrograms(spec_with(objective=distillation()), build_mesh(jax.devices(), layout))

    zeros = jax.tree.leaves(_make_zeros(steps.teacher_shapes))

    shards = [shard for leaf in zeros for shard in leaf.addressable_shards]
    assert _count_local_bytes(steps.teacher_shapes) == sum(shard.data.nbytes for shard in shards)
    assert (_make_zeros(None), _count_local_bytes(None)) == (None, 0)


@pytest.mark.slow
def test_hot_standby_world_takes_over_with_the_losses_of_the_previous_world(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    """The training world has one process and its hot standby two, which must connect to each other.

    Two sizes sum in different orders, and the difference of a loss grows tenfold with about every twenty steps. So the
    curves are compared from one save to the next.
    """
    config = make(root, text)
    crew.prepare(5)
    first = crew.start(config, make_world(1, 2), programs)  # compiles the program that the shadow world waits for
    for trainer in first:
        trainer.wait_for_step(1)
    for trainer in first:
        trainer.kill()
    (before,) = crew.start(config, make_world(2, 1), programs)
    shadow = shadow_of(2)
    waiting = crew.start(config, shadow, programs)
    for trainer in waiting:
        trainer.wait(lambda event: event.waiting)
    assert [trainer.title for trainer in (before, *waiting)] == ["world 2", "shadow", "shadow"]
    assert [trainer.phases for trainer in waiting] == [[Phase.CONNECTING]] * 2
    before.wait(lambda event: event.committed and event.committed >= 2 * SAVE_EVERY)
    before.kill()
    before.wait_for_end()

    saved, newest = before.committed[-2:]
    world = make_world(3, 2, (Span(generation=2, first=1, last=saved),))
    crew.hand_over(config, taken_over(shadow, world), waiting, programs)
    for trainer in waiting:
        trainer.wait_for_step(newest)

    assert [trainer.title for trainer in waiting] == ["world 3", "world 3"]
    for trainer in waiting:
        assert trainer.restored == saved
        assert trainer.phases[:5] == WHOLE_LIFE
        again = {step: loss for step, loss in trainer.losses.items() if step <= newest}
        assert list(again) == list(range(saved + 1, newest + 1))
        assert again == pytest.approx({step: before.losses[step] for step in again}, abs=CURVES_APART)


@pytest.mark.slow
@pytest.mark.parametrize("goes_back", [False, True], ids=["the newest snapshot", "what a rollback goes back to"])
def test_hot_standby_resumes_from_the_step_of_its_world_when_it_takes_over(
    crew: Crew, root: Path, text: Path, programs: Path, tmp_path: Path, *, goes_back: bool
) -> None:
    """Its steps and its skipped samples came into being while it waited."""
    config = make(root, text, snapshots={"everySteps": SNAPSHOT_EVERY})
    crew.prepare(2)
    (before,) = crew.start(config, make_world(1, 1), programs, tmp_path)
    shadow = shadow_of(1)
    (waiting,) = crew.start(config, shadow, programs, tmp_path)
    waiting.wait(lambda event: event.waiting)
    before.wait(lambda event: event.committed and event.committed >= 2 * SAVE_EVERY)
    before.kill()
    before.wait_for_end()

    bad, saved = max(before.losses), before.committed[-1]
    back = Rollback(lineage=1, generation=1, step=bad, parent=SAVE_EVERY)
    last, rollbacks = (SAVE_EVERY, (back,)) if goes_back else (bad, ())
    world = make_world(2, 1, (Span(generation=1, first=1, last=last),), rollbacks=rollbacks)
    crew.hand_over(config, taken_over(shadow, world), [waiting], programs, tmp_path)
    waiting.wait(lambda event: event.restored)
    assert waiting.restored is not None
    waiting.wait_for_step(waiting.restored + 2)  # a step is told before its line is written

    if goes_back:
        assert (waiting.restored, waiting.tier) == (SAVE_EVERY, "durable")
    else:
        assert saved <= waiting.restored <= bad
        assert waiting.tier == "ram"
    (line,) = [line for line in read_lines(root) if (line["generation"], line["step"]) == (2, waiting.restored + 1)]
    assert line["first_slot"] == BATCH * (bad if goes_back else waiting.restored)


@pytest.mark.slow
def test_hot_standby_trains_and_evaluates_to_the_last_step_after_its_takeover(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    """The steps were edited while it waited, and an edit has no part in what is compiled."""
    crew.prepare(2)
    (before,) = crew.start(make(root, text), make_world(1, 1), programs)
    shadow = shadow_of(1)
    (waiting,) = crew.start(make(root, text), shadow, programs)
    waiting.wait(lambda event: event.waiting)
    before.wait(lambda event: event.committed)
    before.kill()
    before.wait_for_end()

    last = before.committed[-1] + 3
    world = make_world(2, 1, (Span(generation=1, first=1),))
    crew.hand_over(make(root, text, steps=last), taken_over(shadow, world), [waiting], programs)
    waiting.wait(lambda event: event.phase is Phase.DONE or (event.progress and event.progress.step > last))

    assert (waiting.phases[-1], max(waiting.losses)) == (Phase.DONE, last)
    assert [event.progress.evaluations for event in waiting.events if event.progress][-1].keys() == {"news"}


def read_lines(root: Path) -> list[dict[str, int]]:
    text = (root / "metrics/metrics.jsonl").read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@pytest.mark.slow
def test_hot_standby_without_its_agent_ends_silently(crew: Crew, root: Path, text: Path, tmp_path: Path) -> None:
    """Without its programs it waits for them, and leaves no trace."""
    (shadow,) = crew.start(make(root, text), shadow_of(1), tmp_path / "none")

    shadow.process.stdin.close()

    assert shadow.wait_for_end() == 3
    assert shadow.phases == []
    assert not root.exists()
