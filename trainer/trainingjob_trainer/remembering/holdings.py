"""What the processes of a world hold of snapshots, and which one they can go on from together.

A snapshot counts only if every shard of the new layout is held, of that very generation and step, by a process that
needs it: its other replicas then lie where one sum over the mesh reaches them.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trainingjob_trainer.history import Past
from trainingjob_trainer.remembering.snapshot_files import Key


@dataclass(frozen=True)
class Holding:
    """What one process says: how many shards it needs, and which of them it holds, by snapshot."""

    num_needed: int
    shards: Mapping[Key, frozenset[int]] = field(default_factory=dict)
    pasts: Mapping[Key, Past] = field(default_factory=dict)

    def dump(self) -> str:
        """Return it as text for the other processes."""
        kept = [
            [*key, sorted(held), self.pasts.get(key, Past()).model_dump(exclude_defaults=True)]
            for key, held in self.shards.items()
        ]
        return json.dumps([self.num_needed, kept])


def parse_holding(text: str) -> Holding:
    """Return what a process dumped."""
    num_needed, snapshots = json.loads(text)
    return Holding(
        num_needed,
        {(generation, step): frozenset(held) for generation, step, held, _ in snapshots},
        {(generation, step): Past.model_validate(past) for generation, step, _, past in snapshots if past},
    )


def choose_snapshot(
    holdings: Sequence[Holding], num_shards: int, refused: Collection[Key] = ()
) -> Key | None:  # None: no snapshot is whole
    """Return the newest snapshot of which every shard is held by somebody."""
    keys = {key for holding in holdings for key in holding.shards} - set(refused)
    for key in sorted(keys, reverse=True):
        if len(frozenset().union(*(holding.shards.get(key, ()) for holding in holdings))) == num_shards:
            return key
    return None


def find_givers(holdings: Sequence[Holding], key: Key) -> dict[int, int] | None:  # None: each has all it needs
    """Return which process gives each shard to the others: the first that holds it."""
    if all(len(holding.shards.get(key, ())) == holding.num_needed for holding in holdings):
        return None
    givers: dict[int, int] = {}
    for process, holding in enumerate(holdings):
        for shard in holding.shards.get(key, ()):
            givers.setdefault(shard, process)
    return givers
