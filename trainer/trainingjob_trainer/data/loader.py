"""Batches: the sequences of a step, sharded over the mesh. Each process loads those of its local devices."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from trainingjob_api.world import Layout
from trainingjob_trainer.data.mixture import TrainingText
from trainingjob_trainer.data.sample_history import SampleHistory
from trainingjob_trainer.data.sampler import WHOLE_BATCH, SampleShare, size_of_step
from trainingjob_trainer.data.stored_probabilities import StoredRows
from trainingjob_trainer.data.token_dataset import Sequences, TokenDataset
from trainingjob_trainer.data.training_length import TrainingLength
from trainingjob_trainer.models.divergence import StoredShares
from trainingjob_trainer.state import Batch, BatchShape


def batch_shape(layout: Layout) -> BatchShape:
    """Return the shape of a layout's batches."""
    return layout.accumulation, layout.microbatches, layout.rows_per_microbatch


class BatchLoader:
    """Creates the batches of a job over one layout.

    `history` is that of the job. None: all steps have the largest batch size. Held-out batches have that size, or the
    part of it that `share` loads. `length` is that of the training. None: all batches are full. `share` is the share of
    each batch of training that is loaded: the shapes of `layout` are those of the share.
    """

    def __init__(
        self,
        layout: Layout,
        sharding: NamedSharding,
        largest_batch: int,
        history: SampleHistory | None = None,
        length: TrainingLength | None = None,
        share: SampleShare = WHOLE_BATCH,
    ) -> None:
        self._layout = layout
        self._sharding = sharding
        self._held_out_size = largest_batch // share.parts
        self._history = history or SampleHistory(((1, largest_batch),))
        self._length = length
        self._share = share

    @property
    def held_out_shape(self) -> BatchShape:
        """Return the shape of held-out batches whose evaluation sets none."""
        return batch_shape(self._layout)

    def size_of_step(self, step: int) -> int:
        """Return the global batch size of a step."""
        return size_of_step(step, self._history.sizes)

    def train_batch(self, text: TrainingText, step: int, seed: int) -> Batch:
        """Return the batch of a step, counted from 1."""
        rows = text.choose_sequences(self._share.take(self.samples(step)), seed, self._history)
        return self._to_mesh(text, rows, batch_shape(self._layout.for_batch(self.size_of_step(step))))

    def samples(self, step: int) -> np.ndarray:
        """Return the sample indices of a step, int64, fewer than a batch for the last step of the last epoch."""
        samples = self._history.samples(step)
        return samples[: self._length.last_batch] if self._length and step == self._length.steps else samples

    def held_out_batch(
        self, index: TokenDataset, number: int, num_sequences: int | None = None, shape: BatchShape | None = None
    ) -> Batch:
        """Return held-out batch `number`, counted from 0, in the order of the text; the last one may be short.

        `num_sequences` is the number of sequences of all batches. None: those of the whole text. `shape` is that of
        the batch, by default that of a training step.
        """
        first, end = number * self._held_out_size, index.num_sequences if num_sequences is None else num_sequences
        rows = np.arange(first, min(first + self._held_out_size, end))
        return self._to_mesh(index, rows, shape or self.held_out_shape, count_bytes=index.count_bytes)

    def count_held_out(self, index: TokenDataset, limit: int | str) -> int:
        """Return the number of held-out batches, at most `limit`. The text `all`: those of the whole text."""
        available = -(-index.num_sequences // self._held_out_size)
        return min(limit, available) if isinstance(limit, int) else available

    def _to_mesh(
        self,
        text: TrainingText,
        rows: np.ndarray,
        of_batch: BatchShape,
        *,
        count_bytes: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> Batch:
        """Return sequences as a batch over the mesh, with padding sequences of weight 0.

        `count_bytes` returns the bytes of targets. None: the batch has none.
        """
        per_example = 2 if text.has_pairs else 1
        *outer, num_sequences = of_batch
        shape = (*outer, num_sequences // per_example)
        padding = math.prod(shape) - len(rows)
        numbers = np.pad(rows, (0, padding)).reshape(shape)
        is_padding = np.arange(math.prod(shape)).reshape(shape) >= len(rows)

        @cache
        def load(place: tuple[slice, ...]) -> Sequences:
            sequence_numbers, padded = (
                array[place[:2]][..., _of_examples(place[2:], per_example)] for array in (numbers, is_padding)
            )
            sequences = text.sequences(sequence_numbers.reshape(-1))
            sequences.loss_weights[padded.reshape(-1)] = 0.0
            leading_dims, dims = (*sequence_numbers.shape[:2], -1, text.sequence_length), sequences.tokens.ndim
            shaped: Sequences = jax.tree.map(lambda array: array.reshape(*leading_dims, *array.shape[dims:]), sequences)
            return shaped

        def make(part: Callable[[Sequences], Any], *further: int) -> jax.Array:
            whole = (*of_batch, text.sequence_length, *further)
            return jax.make_array_from_callback(whole, self._sharding, lambda place: part(load((place or ())[:3])))

        return Batch(
            tokens=make(lambda sequences: sequences.tokens),
            targets=make(lambda sequences: sequences.targets),
            loss_weights=make(lambda sequences: sequences.loss_weights),
            segment_ids=make(lambda sequences: sequences.segment_ids) if text.is_isolated else None,
            positions=make(lambda sequences: sequences.positions) if text.is_isolated else None,
            target_bytes=make(lambda sequences: count_bytes(sequences.targets)) if count_bytes else None,
            stored=StoredShares(
                make(lambda sequences: _stored(sequences).ids, text.per_token),
                make(lambda sequences: _stored(sequences).shares, text.per_token),
                make(lambda sequences: _stored(sequences).entropy),
            )
            if text.per_token
            else None,
        )


def _stored(sequences: Sequences) -> StoredRows:
    assert sequences.stored is not None  # noqa: S101  # the text has stored probabilities
    return sequences.stored


def _of_examples(sequences: tuple[slice, ...], per_example: int) -> slice:
    """Return the examples of a run of sequences, which is whole if nothing shards it."""
    (run,) = sequences or (slice(None),)
    begin, end = (None if bound is None else bound // per_example for bound in (run.start, run.stop))
    return slice(begin, end)
