"""Scores of a model on held-out text: loss, next-token accuracy, and bits per byte of text.

Bits per byte compare models with different tokenizers (Gao et al. 2020, The Pile, arXiv 2101.00027, section 3.1): the
sum of the cross-entropies in bits, divided by the bytes of the predicted text. A special token has no bytes, and the
model's bits for it count.
"""

import math
import operator
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from trainingjob_trainer.models.decoder import Params, SplitModel
from trainingjob_trainer.models.sharded_model import Hidden, ShardedModel
from trainingjob_trainer.objectives.accumulation import accumulate
from trainingjob_trainer.objectives.objective import TEACHER_DIVERGENCE
from trainingjob_trainer.objectives.teacher import Teacher, TeacherParams
from trainingjob_trainer.state import Batch


class ScoreSums(NamedTuple):
    """Sums over the predictions of a batch, float32 scalars, each prediction counted by its loss weight."""

    loss: jax.Array
    """Cross-entropies."""
    weight: jax.Array
    hits: jax.Array
    """Predictions whose target is the most likely token."""
    num_bytes: jax.Array
    """Bytes of the targets. 0: unknown."""
    pairs: dict[str, jax.Array]
    """Further metrics of pairs, by name. Then all sums are those over pairs, and a hit is a pair whose chosen answer
    has the greater reward. Empty: the objective has no pairs."""
    divergence: jax.Array | None = None
    """Divergences from the teacher. None: there is no teacher."""


type EvaluateStep = Callable[[Params, Batch, jax.Array, Params | None], tuple[ScoreSums, jax.Array]]
"""Returns the sums of a batch, and the control signals of all processes."""


def add_sums(totals: ScoreSums | None, sums: ScoreSums) -> ScoreSums:
    """Return running totals with the sums of another batch, as float64 numbers. None: there is no total yet."""
    read: ScoreSums = jax.tree.map(float, sums)
    added: ScoreSums = read if totals is None else jax.tree.map(operator.add, totals, read)
    return added


class Scores(NamedTuple):
    """Scores on held-out text."""

    loss: float
    """Mean cross-entropy of a prediction. NaN: no prediction counts."""
    accuracy: float
    """Share of the predictions whose target is the most likely token."""
    bits_per_byte: float | None
    """None: the bytes of the text are unknown."""
    pairs: Mapping[str, float] = MappingProxyType({})
    """Means of the metrics of pairs, by name. Empty: the objective has no pairs."""
    divergence: float | None = None
    """Mean divergence from the teacher. None: there is no teacher."""

    @classmethod
    def from_sums(cls, sums: "ScoreSums") -> "Scores":
        """Return the scores of sums over all batches, as numbers."""
        loss, weight, hits, num_bytes = map(float, sums[:4])
        if weight == 0:
            return cls(math.nan, math.nan, None)
        # Sums are rounded: those of fractional weights may exceed their total.
        accuracy = min(hits / weight, 1.0)
        bits_per_byte = loss / math.log(2) / num_bytes if num_bytes else None
        pairs = {name: float(value) / weight for name, value in sums.pairs.items()}
        divergence = None if sums.divergence is None else float(sums.divergence) / weight
        return cls(loss / weight, accuracy, bits_per_byte, pairs, divergence)

    def by_name(self) -> dict[str, float]:
        """Return the scores that are known."""
        own = {"loss": self.loss, "accuracy": self.accuracy, "bits_per_byte": self.bits_per_byte}
        own[TEACHER_DIVERGENCE] = self.divergence
        return {name: score for name, score in own.items() if score is not None} | dict(self.pairs)


class Scorer:
    """Sums the scores of a model on one mesh. With a teacher, the parameters have those of the teacher too."""

    def __init__(self, model: SplitModel, mesh: Mesh, teacher: Teacher | None = None) -> None:
        self._model = ShardedModel(model, mesh)
        self._mesh = mesh
        self._teacher = teacher

    def compute(self, params: Params, batch: Batch) -> ScoreSums:
        """Return the sums of a batch with `target_bytes`."""
        zero = jnp.zeros(())
        zeros = ScoreSums(zero, zero, zero, zero, {}, zero if self._teacher else None)
        return accumulate(self._score, zeros, params, batch, self._mesh)

    def _score(self, params: Params, batch: Batch) -> ScoreSums:
        head: TeacherParams | None = None
        if self._teacher:
            params, batch = self._teacher.add_hidden(params, batch)
            head = self._teacher.select_head(self._model, params)
        hidden = self._model.run(params, batch.tokens, batch.positions, batch.segment_ids)
        return self._model.read_out(self._read_scores, params, hidden, (batch, head))

    def _read_scores(self, params: Params, hidden: Hidden, constants: tuple[Batch, TeacherParams | None]) -> ScoreSums:
        batch, head = constants
        teacher = self._teacher.attach(self._model, batch, head) if self._teacher and head else None
        losses = self._model.sum_losses(
            params, hidden, batch.targets, batch.loss_weights, counts_hits=True, teacher=teacher
        )
        assert losses.hits is not None and batch.target_bytes is not None  # noqa: PT018, S101
        # By sequence first: float32 cannot count the bytes of a large batch one by one.
        num_bytes = jnp.sum(jnp.sum(batch.loss_weights * batch.target_bytes, axis=-1))
        return ScoreSums(
            losses.cross_entropy, jnp.sum(batch.loss_weights), losses.hits, num_bytes, {}, losses.divergence
        )
