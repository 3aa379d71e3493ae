"""A job whose slices train as replicas, by real trainer processes: rounds, metrics, checkpoints, and a later world."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.crew import Crew, Trainer
from tests.support.trainer.shelf import list_steps
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from trainingjob_agent.trainer_protocol import Command
from trainingjob_api.protocol import Phase
from trainingjob_api.world import Replication, RunConfig, Span, World

SYNC_EVERY, STEPS = 20, 40
REPLICATION = Replication(slices_max=2, sync_every=SYNC_EVERY, learning_rate=0.3, momentum=0.9, wait_seconds=600)
FIRST = Span(generation=1, first=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "shared/checkpoints"


def make_job(root: Path, text: Path, steps: int) -> RunConfig:
    held_out = [{"name": "held", "path": str(text), "everySteps": STEPS, "numBatches": 2}]
    changes: dict[str, Any] = {
        "training__steps": steps,
        "checkpoint__save__everySteps": SYNC_EVERY,
        "evaluation": held_out,
    }
    return make_config(make_spec(root, text, **changes), (make_layout(rows_per_shard=1),))


def make_replica_world(generation: int, number: int, lineage: tuple[Span, ...] = ()) -> World:
    world = make_world(generation, 1, lineage)
    members = tuple(member.model_copy(update={"slice": number}) for member in world.members)
    return world.model_copy(update={"members": members, "replication": REPLICATION})


def join(*trainers: Trainer, live: tuple[int, ...]) -> None:
    """Let trainers begin a round, because no other slice is in one; then, `live` are."""
    for trainer in trainers:
        trainer.wait(lambda event: event.phase is Phase.SYNCHRONIZING)
    for trainer in trainers:
        trainer.write(Command(live_slices=()))
    for trainer in trainers:
        trainer.wait(lambda event: event.phase is Phase.TRAINING)
        trainer.write(Command(live_slices=live))


def check_done(trainer: Trainer) -> None:
    assert trainer.wait_for_end() == 0, trainer.tell_logs()
    assert trainer.phases[-1] is Phase.DONE


@pytest.mark.slow
def test_slices_train_as_replicas_and_one_of_them_continues(crew: Crew, root: Path, text: Path, programs: Path) -> None:
    config = make_job(root, text, STEPS)
    slices = [crew.start(config, make_replica_world(number + 1, number), programs)[0] for number in (0, 1)]
    join(*slices, live=(0, 1))
    for trainer in slices:
        check_done(trainer)

    record = json.loads((root / f"replicas/lineage-0/{STEPS}/members-0.json").read_text())
    assert [member["slice"] for member in record["members"]] == [0, 1]
    assert slices[0].losses[STEPS] != slices[1].losses[STEPS], "each has its share of the batch"
    newest = [event.progress for event in slices[0].events if event.progress][-1]
    assert round((newest.tokens_per_second or 0) * (newest.step_seconds or 0)) == 2 * 16, "those of its share"
    assert STEPS in slices[0].committed
    assert slices[1].committed == []
    lines = read_lines(root)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if "evaluation" in line] == [STEPS]

    (later,) = crew.start(make_job(root, text, STEPS + 5), make_replica_world(3, 1, (FIRST,)), programs)
    join(later, live=(1,))
    check_done(later)

    assert later.restored == STEPS
    assert list(later.losses) == list(range(STEPS + 1, STEPS + 6))
    assert str(STEPS + 5) in list_steps(root / "lineage-0")
    assert [line["generation"] for line in read_lines(root)[len(lines) :] if "loss" in line] == [3] * 5


def read_lines(root: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / "metrics/metrics.jsonl").read_text().splitlines()]
