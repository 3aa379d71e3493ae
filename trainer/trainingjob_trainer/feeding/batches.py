"""Batches: the sequences of a step, sharded over the mesh. Each process loads those of its local devices."""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from trainingjob_api.world import Layout
from trainingjob_trainer.feeding.index import Index
from trainingjob_trainer.feeding.rows import Sizes, Skipped, rows_of_slots, slots_of_step
from trainingjob_trainer.modelling.signature import Batch, BatchShape


def shape_of(layout: Layout) -> BatchShape:
    """Return the shape of a layout's batches."""
    return layout.accumulation, layout.microbatches, layout.rows_per_microbatch


class Batches:
    """Creates batches of one global size over one layout. `skipped` are the excluded sample indices.

    `sizes` are the global batch sizes of the job's history. None: all steps have this size.
    """

    def __init__(
        self,
        layout: Layout,
        sharding: NamedSharding,
        global_batch_size: int,
        skipped: Skipped = (),
        sizes: Sizes | None = None,
    ) -> None:
        self.shape = shape_of(layout)
        self._sharding = sharding
        self._size = global_batch_size
        self._sizes = sizes or ((1, global_batch_size),)
        self._skipped = skipped

    def train(self, index: Index, step: int, seed: int) -> Batch:
        """Return the batch of a step, counted from 1."""
        rows = rows_of_slots(slots_of_step(step, self._sizes, self._skipped), index.num_rows, seed)
        return self._lay_out(index, rows)

    def held_out(self, index: Index, number: int) -> Batch:
        """Return held-out batch `number`, counted from 0, in the order of the text; the last one may be short."""
        first = number * self._size
        return self._lay_out(index, np.arange(first, min(first + self._size, index.num_rows)))

    def count_held_out(self, index: Index, wanted: int) -> int:
        """Return the number of held-out batches, at most `wanted`."""
        return min(wanted, -(-index.num_rows // self._size))

    def _lay_out(self, index: Index, rows: np.ndarray) -> Batch:
        """Return sequences as a batch over the mesh, with padding sequences of weight 0."""
        padding = math.prod(self.shape) - len(rows)
        numbers = np.pad(rows, (0, padding)).reshape(self.shape)
        weights = np.pad(np.ones(len(rows), np.float32), (0, padding)).reshape(self.shape)
        length = index.sequence_length + 1

        def load(place: Any) -> np.ndarray:
            wanted = numbers[place[:3]]
            return index.rows(wanted.reshape(-1)).reshape(*wanted.shape, length)

        return Batch(
            jax.make_array_from_callback((*self.shape, length), self._sharding, load),
            jax.make_array_from_callback(self.shape, self._sharding, lambda place: weights[place]),
        )
