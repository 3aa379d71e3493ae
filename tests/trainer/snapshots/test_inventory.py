"""The snapshot that the processes of a world can resume from, by their inventories."""

from dataclasses import replace

import pytest

from trainingjob_trainer.snapshots.inventory import ShardInventory, choose_snapshot, find_senders, parse_inventory
from trainingjob_trainer.snapshots.snapshot_files import Key

OLD, NEW, NEXT = (1, 40), (1, 45), (2, 42)


def holding(num_needed: int, **held: list[int]) -> ShardInventory:
    keys = {"old": OLD, "new": NEW, "next": NEXT}
    return ShardInventory(num_needed, {keys[name]: frozenset(shards) for name, shards in held.items()})


NOTHING = holding(2)
CHOICES: dict[str, tuple[list[ShardInventory], set[Key], Key | None]] = {
    "nobody holds any": ([NOTHING, NOTHING], set(), None),
    "all hold their own": ([holding(1, new=[0]), holding(1, new=[1])], set(), NEW),
    "the newest": ([holding(2, old=[0, 1], new=[0, 1])], set(), NEW),
    "the newest of a later generation, at an earlier step": ([holding(2, new=[0, 1], next=[0, 1])], set(), NEXT),
    "the newest has a hole": ([holding(1, old=[0], new=[0]), holding(1, old=[1])], set(), OLD),
    "each step has another hole": ([holding(1, old=[0]), holding(1, new=[1])], set(), None),
    "the same step of two generations is two snapshots": ([holding(1, new=[0]), holding(1, next=[1])], set(), None),
    "one replica is enough": ([holding(2, new=[0, 1]), NOTHING], set(), NEW),
    "the newest was damaged": ([holding(2, old=[0, 1], new=[0, 1])], {NEW}, OLD),
    "all were damaged": ([holding(2, new=[0, 1])], {NEW}, None),
}


@pytest.mark.parametrize(("holdings", "refused", "want"), CHOICES.values(), ids=CHOICES.keys())
def test_choose_snapshot(holdings: list[ShardInventory], refused: set[Key], want: Key | None) -> None:
    assert choose_snapshot(holdings, 2, refused) == want


GIVERS: dict[str, tuple[list[ShardInventory], dict[int, int] | None]] = {
    "each has all it needs": ([holding(2, new=[0, 1]), holding(1, new=[1])], None),
    "one came anew": ([holding(2), holding(2, new=[0, 1])], {0: 1, 1: 1}),
    "one has lost a part": ([holding(2, new=[0]), holding(2, new=[0, 1])], {0: 0, 1: 1}),
}


@pytest.mark.parametrize(("holdings", "want"), GIVERS.values(), ids=GIVERS.keys())
def test_find_givers(holdings: list[ShardInventory], want: dict[int, int] | None) -> None:
    assert find_senders(holdings, NEW) == want


def test_inventory_of_a_process_is_exchanged() -> None:
    held = holding(3, old=[0, 2], next=[])
    printed = replace(held, metrics={OLD: ({"generation": 1, "step": 40, "loss": None},)})

    assert parse_inventory(printed.dump()) == printed
