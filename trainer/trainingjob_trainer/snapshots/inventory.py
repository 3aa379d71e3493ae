"""The inventory of snapshot shards over the processes of a world, and the choice of the snapshot to restore.

A snapshot can be restored only if every shard of the new layout is held, for the same generation and step. A process
that needs the shard must hold it: one sum over the mesh then gives it to the other replicas.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.trackers.metrics_file import Line


@dataclass(frozen=True)
class ShardInventory:
    """The inventory of one process: how many shards it needs, and which of them it holds, by snapshot."""

    num_needed: int
    shards: Mapping[Key, frozenset[int]] = field(default_factory=dict)
    pasts: Mapping[Key, Provenance] = field(default_factory=dict)
    metrics: Mapping[Key, tuple[Line, ...]] = field(default_factory=dict)

    def dump(self) -> str:
        """Return the inventory as text for the other processes."""
        kept = [
            [
                *key,
                sorted(held),
                self.pasts.get(key, Provenance()).model_dump(exclude_defaults=True),
                self.metrics.get(key, ()),
            ]
            for key, held in self.shards.items()
        ]
        return json.dumps([self.num_needed, kept])


def parse_inventory(text: str) -> ShardInventory:
    """Return the inventory that a process dumped."""
    num_needed, snapshots = json.loads(text)
    return ShardInventory(
        num_needed,
        {(generation, step): frozenset(held) for generation, step, held, *_ in snapshots},
        {(generation, step): Provenance.model_validate(past) for generation, step, _, past, _ in snapshots if past},
        {(generation, step): tuple(metrics) for generation, step, _, _, metrics in snapshots if metrics},
    )


def choose_snapshot(
    inventories: Sequence[ShardInventory], num_shards: int, refused: Collection[Key] = ()
) -> Key | None:  # None: no snapshot is complete
    """Return the newest snapshot of which every shard is held by some process."""
    keys = {key for inventory in inventories for key in inventory.shards} - set(refused)
    for key in sorted(keys, reverse=True):
        if len(frozenset().union(*(inventory.shards.get(key, ()) for inventory in inventories))) == num_shards:
            return key
    return None


def find_senders(inventories: Sequence[ShardInventory], key: Key) -> dict[int, int] | None:  # None: no shard is missing
    """Return the process that broadcasts each shard: the first process that holds it."""
    if all(len(inventory.shards.get(key, ())) == inventory.num_needed for inventory in inventories):
        return None
    givers: dict[int, int] = {}
    for process, inventory in enumerate(inventories):
        for shard in inventory.shards.get(key, ()):
            givers.setdefault(shard, process)
    return givers
