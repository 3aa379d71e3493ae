"""The lineage in a saved step, so that the history contains worlds that never reported."""

from pathlib import Path

import pytest

from tests.support.trainer.tiny import make_config, make_spec, make_world
from tests.trainer.checkpoint.test_checkpoints import describe, make_state
from trainingjob_api.protocol import MAX_MISSING_LINEAGE
from trainingjob_api.world import Span
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.inventory import ShardInventory, parse_inventory
from trainingjob_trainer.snapshots.lineage import Provenance, StepRecord, extend_provenance

FIRST = Span(generation=1, first=1)
SECOND = Span(generation=2, first=11, tier="ram")
THIRD = Span(generation=3, first=21, tier="ram")
OWN = Span(generation=5, first=31, tier="ram")
PASTS: dict[str, tuple[tuple[Span, ...], tuple[Span, ...], int, tuple[Span, ...]]] = {
    "of one that is heard of": ((FIRST,), (FIRST,), 1, (OWN,)),
    "of one that is not": ((FIRST,), (SECOND,), 2, (SECOND, OWN)),
    "of two that are not": ((FIRST,), (SECOND, THIRD), 3, (SECOND, THIRD, OWN)),
    "of one that was not and is now": ((FIRST, SECOND, THIRD), (SECOND, THIRD), 3, (OWN,)),
    "of another job": ((), (FIRST,), 0, (OWN,)),
}


@pytest.mark.parametrize(("lineage", "spans", "since", "want"), PASTS.values(), ids=PASTS.keys())
def test_a_past_has_what_no_lineage_has(
    lineage: tuple[Span, ...], spans: tuple[Span, ...], since: int, want: tuple[Span, ...]
) -> None:
    assert (
        extend_provenance(Provenance(spans=spans), make_world(5, 1, lineage), ((1, 8),), since, 30, "ram").spans == want
    )


def test_recorded_lineage_is_bounded_without_reports() -> None:
    past = Provenance()
    for generation in range(1, 2 * MAX_MISSING_LINEAGE):
        past = extend_provenance(past, make_world(generation, 1), ((1, 8),), generation - 1, generation * 10, "ram")

    assert len(past.spans) == MAX_MISSING_LINEAGE + 1


def test_saved_step_contains_its_world_and_earlier_unreported_ones(tmp_path: Path) -> None:
    config = make_config(make_spec(tmp_path, tmp_path))
    state = make_state((1, 1))
    with (tmp_path / "events").open("wb", buffering=0) as file:
        events = AgentEvents(file.fileno())

        def live(generation: int, step: int) -> Provenance:
            world = make_world(generation, 1)  # its operator hears of none
            checkpoints = Checkpoints(tmp_path, config, world, ProcessGroup(0, 1), "index", events)
            checkpoints.restore(describe(state))
            checkpoints.save(step, state)
            checkpoints.wait()
            return checkpoints.past

        first, second, third = live(1, 10), live(2, 20), live(3, 30)

    spans = (FIRST, Span(generation=2, first=11), Span(generation=3, first=21))
    assert (first.spans, second.spans, third.spans) == (spans[:1], spans[:2], spans)


def test_a_record_has_the_whole_provenance_of_its_step() -> None:
    past = Provenance(skipped=((8, 16),), batch_sizes=((1, 4),), phase_runs=((0, 1), (12, 4), (16, 1)), spans=(SECOND,))
    record = StepRecord(job_uid="uid", generation=2, step=12, data="data", state="state", **dict(past))

    assert record.provenance == past
    assert set(dict(past)) == past.model_dump(exclude_defaults=True).keys()


def test_provenance_of_a_snapshot_reaches_all_processes() -> None:
    past = Provenance(skipped=((8, 16),), spans=(SECOND, THIRD))
    printed = ShardInventory(1, {(3, 25): frozenset((0,))}, {(3, 25): past})

    assert parse_inventory(printed.dump()) == printed
