"""Going back: training after it is that of a job which never saw the samples that are left out."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.shelf import list_steps, read_record, step_path
from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.support.trainer.training import BATCH, NUM_STEPS, ONE, Run, flat, spec_with
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from tests.trainer.test_main import FIRST, MANY, make
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Rollback, Span
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.restore import RestoredState
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sampler import ExcludedSamples
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance, extend_provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.state import State

PARENT, BAD = 2, 4
"""Of a rollback: the step that training went back to, and the bad one."""
EVERY = 2
"""Steps between two saves."""
BACK = (Rollback(lineage=1, generation=1, step=BAD, parent=PARENT),)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared/checkpoints"


def leave_out(run: Run, skipped: tuple[tuple[int, int], ...]) -> Run:
    run.batches = BatchLoader(ONE, run.steps.batch_sharding, BATCH, SampleHistory(((1, BATCH),), skipped))
    return run


@pytest.mark.slow
def test_training_after_a_rollback_is_that_of_a_run_without_the_samples_from_the_start(tmp_path: Path) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, training__globalBatchSize=BATCH))
    run = Run(spec_with(), ONE)
    with (tmp_path / "events").open("wb", buffering=0) as file:
        first, second = (
            Checkpoints(tmp_path, config, world, ProcessGroup(0, 1), "index", AgentEvents(file.fileno()))
            for world in (make_world(1, 1), make_world(2, 1, (FIRST,), rollbacks=BACK))
        )
        for _ in run.train(BAD):
            if int(run.state.step) in (PARENT, PARENT + 1):
                first.save(int(run.state.step), run.state)
                first.wait()
        restored = second.restore(run.steps.state_shapes)
        assert restored is not None
        run.state = restored
        losses = [float(measures.loss) for measures in leave_out(run, second.past.skipped).train(NUM_STEPS - PARENT)]
        second.save(NUM_STEPS, run.state)
        second.wait()

    want = leave_out(Run(spec_with(), ONE), ((PARENT * BATCH, BAD * BATCH),))
    assert losses == [float(measures.loss) for measures in want.train()][PARENT:]
    assert all((flat(run.state)[path] == leaf).all() for path, leaf in flat(want.state).items())
    assert list_steps(tmp_path / "lineage-0") == [str(PARENT)]
    saved = read_record(step_path(tmp_path, NUM_STEPS, lineage=1))
    assert saved is not None
    assert (saved.lineage, saved.skipped) == (1, ((PARENT * BATCH, BAD * BATCH),))


AGAIN = (*BACK, Rollback(lineage=2, generation=3, step=5, parent=PARENT))
OWN = ((16, 32),)
RUNS = ((0, 1), (24, 4), (32, 1))
"""Of the same rollback, if step 4 begins a phase of `weightSchedule`."""


@pytest.mark.parametrize(
    ("rollbacks", "since", "skipped", "want"),
    {
        "from scratch": (BACK, 0, (), OWN),
        "a step of before the rollback": (BACK, 1, (), OWN),
        "a step of after it": (BACK, 2, OWN, OWN),
        "a step between two": (AGAIN, 2, OWN, ((16, 56),)),
        "a step before both": (AGAIN, 1, (), ((16, 56),)),
        "a step after both": (AGAIN, 4, ((16, 56),), ((16, 56),)),
        "what another job left out": ((), 0, ((0, 8),), ((0, 8),)),
        "what another job left out, and a rollback of one's own": (BACK, 0, ((0, 8),), ((0, 8), (24, 40))),
    }.values(),
)
def test_skipped_samples(
    rollbacks: tuple[Rollback, ...],
    since: int,
    skipped: tuple[tuple[int, int], ...],
    want: tuple[tuple[int, int], ...],
) -> None:
    past = extend_provenance(
        Provenance(skipped=skipped), make_world(5, 1, rollbacks=rollbacks), ((1, BATCH),), since, PARENT, "durable"
    )
    assert past.skipped == want


class Remembered:
    """A snapshot of a world before the rollback, or after it."""

    def __init__(self, state: State, key: Key, skipped: ExcludedSamples) -> None:
        self.newest, self._state, self._past = key, state, Provenance(skipped=skipped)

    def load(self, key: Key) -> State:
        return self._state

    def past(self, key: Key) -> Provenance:
        return self._past


@pytest.mark.parametrize(("key", "skipped"), [((1, PARENT), ()), ((2, PARENT + 1), OWN)])
def test_world_that_resumes_from_a_snapshot_skips_the_same_samples(
    tmp_path: Path, key: Key, skipped: ExcludedSamples
) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, training__globalBatchSize=BATCH))
    state = make_state((1, 1))
    with (tmp_path / "events").open("wb", buffering=0) as file:
        world = make_world(3, 1, (FIRST,), rollbacks=BACK)
        checkpoints = Checkpoints(tmp_path, config, world, ProcessGroup(0, 1), "index", AgentEvents(file.fileno()))
        assert checkpoints.restore(describe(state), Remembered(state, key, skipped)) is state

    assert (checkpoints.newest, checkpoints.past.skipped) == (key[1], OWN)


def test_takeover_skips_the_samples_that_the_first_job_skipped(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, tmp_path, training__globalBatchSize=BATCH, checkpoint__takeover=True)
    state = make_state((1, 1))
    with (tmp_path / "events").open("wb", buffering=0) as file:
        first, second, third = (
            Checkpoints(
                tmp_path,
                make_config(spec, uid=world.job_uid),
                world,
                ProcessGroup(0, 1),
                "i",
                AgentEvents(file.fileno()),
            )
            for world in (
                make_world(2, 1, (Span(generation=1, first=1),), uid="other", rollbacks=BACK),
                make_world(1, 1),
                make_world(2, 1, (Span(generation=1, first=8),)),
            )
        )
        first._restored = RestoredState(past=Provenance(skipped=OWN, phase_runs=RUNS))
        first.save(7, state)
        first.wait()
        assert second.restore(describe(state)) is not None
        second.save(9, state)
        second.wait()
        assert third.restore(describe(state)) is not None

    assert [one.past.skipped for one in (second, third)] == [OWN, OWN]
    assert [one.past.phase_runs for one in (second, third)] == [RUNS, RUNS]
    assert third.newest == 9
    assert list_steps(tmp_path / "lineage-0") == ["9"]


@contextmanager
def rolled_back(root: Path, state: State) -> Iterator[tuple[Checkpoints, Checkpoints]]:
    """Return the checkpoints of a world that saved the parent, and of one that rolled back to it. Both keep 1 step."""
    spec = make_spec(root, root, checkpoint__keep__last=1)
    with (root / "events").open("wb", buffering=0) as file:
        first, second = (
            Checkpoints(root, make_config(spec), world, ProcessGroup(0, 1), "index", AgentEvents(file.fileno()))
            for world in (make_world(1, 1), make_world(2, 1, (FIRST,), rollbacks=BACK))
        )
        first.save(PARENT, state)
        first.wait()
        second.restore(describe(state))
        yield first, second


def test_old_steps_of_all_lineages_are_deleted_and_the_parent_stays(tmp_path: Path) -> None:
    state = make_state((1, 1))
    with rolled_back(tmp_path, state) as (_, second):
        for step in (4, 6):
            second.save(step, state)
            second.wait()

    folders = {path.name: list_steps(path) for path in tmp_path.glob("lineage-*")}
    assert folders == {"lineage-0": [str(PARENT)], "lineage-1": ["6"]}


def test_a_world_that_is_cut_off_from_a_rollback_saves_and_deletes_nothing(tmp_path: Path) -> None:
    state = make_state((1, 1))
    with rolled_back(tmp_path, state) as (first, _):
        first.save(6, state)
        with pytest.raises(TrainingError, match="generation 2 of the job is"):
            first.wait()

    assert [list_steps(path) for path in tmp_path.glob("lineage-*")] == [[str(PARENT)]]


@pytest.mark.slow
def test_world_rolls_back_and_continues_in_a_separate_lineage(
    crew: Crew, root: Path, text: Path, programs: Path
) -> None:
    config = make(root, text, training__steps=MANY)
    (first,) = crew.start(config, make_world(1, 1), programs)
    crew.prepare(1)
    first.wait(lambda event: event.committed == 6)
    first.kill()

    rollbacks = (Rollback(lineage=1, generation=1, step=7, parent=4),)
    (second,) = crew.start(config, make_world(2, 1, (FIRST,), rollbacks=rollbacks), programs)
    second.wait(lambda event: event.committed == 8)
    second.kill()

    assert second.restored == 4
    assert {"4", "6"} & set(list_steps(root / "lineage-0")) == {"4"}
    assert step_path(root, 8, lineage=1)
    before, after = read_slots(root, 1), read_slots(root, 2)
    assert before[7] == range(24, 28)
    assert [after[step] for step in (5, 6)] == [range(28, 32), range(32, 36)]


def read_slots(root: Path, generation: int) -> dict[int, range]:
    lines = map(json.loads, (root / "metrics/metrics.jsonl").read_text().splitlines())
    return {
        line["step"]: range(line["first_slot"], line["last_slot"] + 1)
        for line in lines
        if line["generation"] == generation and "loss" in line
    }


@pytest.mark.slow
def test_a_job_that_is_to_go_back_ends_its_world_at_the_first_bad_step(crew: Crew, root: Path, text: Path) -> None:
    changes = {
        "optimizer": {"learningRate": 10.0, "clipNorm": 0, "weightDecay": {"rate": 10}},
        "protection__nonFinite": "rollback",
    }

    (trainer,) = crew.start(make(root, text, training__steps=MANY, **changes), make_world(1, 1))

    assert trainer.wait_for_end() == 1
    assert trainer.failure is not None
    assert (trainer.failure.reason, trainer.failure.fatal) == (FailureReason.NON_FINITE, False)
    assert trainer.failure.step == max(event.progress.step for event in trainer.events if event.progress)
    assert trainer.failure.step > EVERY
    assert trainer.committed == list(range(EVERY, trainer.failure.step, EVERY))
