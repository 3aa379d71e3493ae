"""Tensors that training never changes, in snapshots: copied once into each file, and restored with the others."""

import mmap
import re
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.training import spec_with
from tests.trainer.snapshots.test_snapshotter import (
    NEXT,
    TWO_SLICES,
    WORLD,
    Opened,
    describe,
    make_state,
    opened,
    read_bits,
    recall,
)
from trainingjob_api.network.resolve import resolve_network
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import NUM_SLOTS
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.snapshots.state_shards import Shard, find_constant_leaves

__all__ = ["opened"]

CONSTANT: dict[str, tuple[dict[str, Any], str]] = {
    "frozen tensors": ({"optimizer__trainable": ["layers.*"]}, r"\.params\['(embed|head|norm)"),
    "the reference of preferences": ({"objective": {"type": "dpo"}}, r"\.reference"),
}


@pytest.mark.parametrize(("changes", "pattern"), CONSTANT.values(), ids=CONSTANT)
def test_what_training_never_changes_is_copied_once_into_each_file(
    changes: dict[str, Any], pattern: str, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with(**changes)
    described = describe(TWO_SLICES, spec)
    constant = find_constant_leaves(described, resolve_network(spec).frozen_names)
    snapshots = opened(WORLD, described, constant=constant)
    times: Counter[str] = Counter()
    copy = Snapshots._copy

    def count(self: Snapshots, memory: mmap.mmap, shard: Shard, replica: jax.Array) -> None:
        times[shard.name] += 1
        copy(self, memory, shard, replica)

    monkeypatch.setattr(Snapshots, "_copy", count)
    first = jax.tree.leaves(make_state(described, 0))
    snapshots.begin(None, Provenance())

    for step in (5, 10, 15, 20, 25):
        changed = jax.tree.leaves(make_state(described, step))
        leaves = [first[number] if number in constant else leaf for number, leaf in enumerate(changed)]
        snapshots.take(step, jax.tree.unflatten(jax.tree.structure(described), leaves))
    snapshots.wait()

    assert {number for name, number in times.items() if re.match(pattern, name)} == {NUM_SLOTS}
    assert {number for name, number in times.items() if not re.match(pattern, name)} == {5}
    found = recall(opened(NEXT, described), described)
    for step in (20, 25):
        restored = found.load((1, step))
        assert restored is not None
        wanted = read_bits(make_state(described, step))
        for number, leaf in enumerate(first):
            if number in constant:
                wanted[number] = np.asarray(leaf).tobytes()
        assert read_bits(restored) == wanted
