"""A job that takes over another's steps: it continues with the next sample, or reports why it cannot."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.shelf import at, read_record, step_path
from tests.support.trainer.tiny import UID, make_config, make_layout, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Rollback
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.manifest import write_integrity
from trainingjob_trainer.data.sampler import BatchSizes, samples_of_step
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.inventory import ShardInventory, parse_inventory
from trainingjob_trainer.snapshots.lineage import Provenance, extend_provenance

STEP = 10


@pytest.fixture
def events(tmp_path: Path) -> Iterator[AgentEvents]:
    with (tmp_path / "events").open("wb", buffering=0) as file:
        yield AgentEvents(file.fileno())


class Stage:
    """Jobs that follow each other on one folder."""

    def __init__(self, root: Path, events: AgentEvents) -> None:
        self._root, self._events = root, events
        self._number = 0
        self.step = 0

    def train(self, steps: int, **training: Any) -> Provenance:
        """Let another job take over, train and save; return the provenance of its steps."""
        self._number += 1
        uid = f"job-{self._number}"
        changes = {f"training__{name}": value for name, value in training.items()}
        config = make_config(make_spec(self._root, self._root, checkpoint__takeover=True, **changes), uid=uid)
        checkpoints = Checkpoints(
            self._root, config, make_world(1, 1, uid=uid), ProcessGroup(0, 1), "index", self._events
        )
        state = make_state((1, 1))
        checkpoints.restore(describe(state))
        assert checkpoints.newest == self.step
        self.step += steps
        checkpoints.save(self.step, state)
        checkpoints.wait()
        return checkpoints.past

    @property
    def record(self) -> Path:
        return step_path(self._root, self.step)


STORIES: dict[str, tuple[tuple[int, ...], BatchSizes]] = {
    "the same batch": ((4, 4), ((1, 4),)),
    "a larger batch": ((4, 8), ((1, 4), (11, 8))),
    "a smaller batch": ((8, 2), ((1, 8), (11, 2))),
    "one that no other divides": ((6, 5), ((1, 6), (11, 5))),
    "larger and larger": ((2, 4, 8), ((1, 2), (11, 4), (21, 8))),
    "larger and back": ((4, 8, 4), ((1, 4), (11, 8), (21, 4))),
    "the same after another": ((4, 8, 8), ((1, 4), (11, 8))),
}


@pytest.mark.parametrize(("batches", "want"), STORIES.values(), ids=STORIES.keys())
def test_takeover_continues_with_the_next_sample(
    events: AgentEvents, tmp_path: Path, batches: tuple[int, ...], want: BatchSizes
) -> None:
    stage = Stage(tmp_path, events)

    pasts = [stage.train(STEP, globalBatchSize=batch) for batch in batches]

    assert pasts[-1].batch_sizes == want
    record = read_record(stage.record)
    assert record.provenance.batch_sizes == want
    taken = [slot for step in range(1, stage.step + 1) for slot in samples_of_step(step, want).tolist()]
    assert taken == list(range(sum(STEP * batch for batch in batches)))


def test_a_step_of_an_older_trainer_is_taken_over(events: AgentEvents, tmp_path: Path) -> None:
    stage = Stage(tmp_path, events)
    stage.train(STEP, globalBatchSize=4)
    record = read_record(stage.record)
    write_integrity(at(stage.record), record.model_copy(update={"batch_sizes": (), "seed": None}))

    assert stage.train(STEP, globalBatchSize=4, seed=7).batch_sizes == ((1, 4),)


@pytest.mark.parametrize("seed", [1, 2_147_483_647])
def test_another_order_is_rejected(events: AgentEvents, tmp_path: Path, seed: int) -> None:
    stage = Stage(tmp_path, events)
    stage.train(STEP, seed=0)

    with pytest.raises(TrainingError) as caught:
        stage.train(STEP, seed=seed)

    reported = caught.value
    assert (reported.reason, reported.path, reported.value, reported.fatal) == (
        FailureReason.CONFIG,
        "spec.training.seed",
        str(seed),
        True,
    )
    assert str(reported).startswith("must be 0, that of the job which saved step 10")


def test_takeover_continues_the_order_of_the_data(events: AgentEvents, tmp_path: Path) -> None:
    stage = Stage(tmp_path, events)
    stage.train(STEP, seed=3)

    assert stage.train(STEP, seed=3)


def test_rollback_after_a_takeover_skips_the_samples_of_its_batches() -> None:
    before = Provenance(batch_sizes=((1, 4),))
    back = (Rollback(generation=1, lineage=1, parent=10, step=12),)

    past = extend_provenance(before, make_world(2, 1, rollbacks=back), ((1, 8),), 0, 10, "durable")

    assert (past.batch_sizes, past.skipped) == (((1, 4), (11, 8)), ((40, 56),))
    assert samples_of_step(11, past.batch_sizes, past.skipped).tolist() == list(range(56, 64))


def test_a_rollback_to_before_a_takeover_s_own_steps() -> None:
    own = Provenance(batch_sizes=((1, 4), (11, 8)))
    back = (Rollback(generation=2, lineage=1, parent=12, step=14),)

    past = extend_provenance(own, make_world(3, 1, rollbacks=back), ((1, 8),), 2, 12, "ram")

    assert (past.batch_sizes, past.skipped) == (((1, 4), (11, 8)), ((56, 72),))


def test_snapshots_carry_the_batch_sizes() -> None:
    past = Provenance(batch_sizes=((1, 4), (11, 8)))
    printed = ShardInventory(1, {(3, 25): frozenset((0,))}, {(3, 25): past})

    assert parse_inventory(printed.dump()).pasts[3, 25] == past


def test_a_restart_of_the_job_itself_changes_nothing() -> None:
    past = extend_provenance(
        Provenance(batch_sizes=((1, 4), (11, 8))), make_world(9, 1, uid=UID), ((1, 8),), 3, 30, "durable"
    )

    assert past.batch_sizes == ((1, 4), (11, 8))


@pytest.mark.slow
def test_a_job_with_larger_batches_trains_on_the_next_samples(crew: Crew, tmp_path: Path, text: Path) -> None:
    root = tmp_path / "shared"
    changes = {"training__steps": 1000, "checkpoint__takeover": True}
    small = make_config(make_spec(root, text, **changes), uid="small")
    large = make_config(
        make_spec(root, text, training__globalBatchSize=8, **changes),
        layouts=(make_layout(accumulation=2),),
        uid="large",
    )
    (first,) = crew.start(small, make_world(1, 1, uid="small"))
    first.wait(lambda event: event.committed == 4)
    first.kill()
    (second,) = crew.start(large, make_world(1, 1, uid="large"))
    second.wait(lambda event: event.progress and event.progress.step == second.restored + 2)
    second.kill()

    lines = [json.loads(line) for line in (root / "metrics/metrics.jsonl").read_text().splitlines()]
    (begun,) = [
        line for line in lines if line["step"] == second.restored + 1 and line["last_slot"] - line["first_slot"] == 7
    ]
    assert begun["first_slot"] == 4 * second.restored
    reports = [event.data for event in second.events if event.data]
    assert [report.sources[0].documents for report in reports] == [4]
