"""Cross-entropies whose logits are computed chunk by chunk, so that the logits of a microbatch are never held whole.

Each device goes over its own tokens, with its own columns of the vocabulary. It sums the gradient of the LM head over
its chunks in float32, and the devices add these sums once. Left to the partitioner, they would add them in each chunk.

The gradients of a weighted sum are computed in the forward pass, beside the logits that they need. The gradients of
single cross-entropies depend on what follows: the backward pass computes their logits again.

Shapes: T pipeline ticks, S stages, R sequences, L length, D model width, V vocabulary, N chunks of C tokens.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainingjob_trainer.models.divergence import SoftLoss, StoredShares, diverge, diverge_from_stored
from trainingjob_trainer.models.token_losses import TokenLosses, add_divergence, count_earlier, find_hits, lose
from trainingjob_trainer.parallel.sharding import Axes, partition_spec

HIDDEN: Axes = (None, "stages", "batch", "length", None)
TOKENS: Axes = HIDDEN[:-1]


@dataclass(frozen=True)
class LmHead:
    """How logits follow from hidden states and the matrix of the output projection."""

    vocab_dim: int
    """Dim of the vocabulary in the matrix: 1 for a head [D, V], 0 for a tied embedding table [V, D]."""
    dtype: Any
    """Compute format."""
    logits_dtype: Any
    """Format of the products of hidden states and matrix."""
    finish: Callable[[jax.Array], jax.Array]
    """Logits in float32 from these products, element by element."""
    is_trained: bool = True
    """Whether the matrix has a gradient."""
    z_loss: float | None = None
    """Weight of the squared log-partition of a token's logits. None: it is not computed."""
    counts_hits: bool = False
    """Whether hits are computed. Training needs none."""
    vocab_axis: str = "vocab"
    """Logical axis of the vocabulary."""
    teacher: "LmHead | None" = None
    """The head of a teacher with the same vocabulary. None: no divergence is computed."""

    def axes(self, width: str | None) -> tuple[str | None, ...]:
        """Return the logical axes of the matrix, with that of the model width."""
        return (self.vocab_axis, width) if self.vocab_dim == 0 else (width, self.vocab_axis)

    def multiply(self, x_CD: jax.Array, matrix: jax.Array) -> jax.Array:
        """Return the products, before `finish`; the matrix is in the compute format."""
        equation = ("...D,VD->...V", "...D,DV->...V")[self.vocab_dim]
        return jnp.einsum(equation, x_CD, matrix, preferred_element_type=self.logits_dtype)

    def pull_back(
        self, x_CD: jax.Array, matrix: jax.Array, grads_CV: jax.Array
    ) -> tuple[jax.Array, jax.Array | None]:  # None: the matrix is frozen
        """Return the gradients of hidden states and matrix in float32, from those of the products."""
        grads_CV = grads_CV.astype(self.dtype)
        to_x, to_matrix = (("CV,VD->CD", "CV,CD->VD"), ("CV,DV->CD", "CV,CD->DV"))[self.vocab_dim]
        dx_CD = jnp.einsum(to_x, grads_CV, matrix, preferred_element_type=jnp.float32)
        if not self.is_trained:
            return dx_CD, None
        return dx_CD, jnp.einsum(to_matrix, grads_CV, x_CD, preferred_element_type=jnp.float32)


class TeacherStates(NamedTuple):
    """What the logits of a teacher follow from, and how much of the loss they make. They have no gradient."""

    x: jax.Array
    """Normalized hidden states [T, S, R, L, D]."""
    matrix: jax.Array
    soft: SoftLoss


class StoredStates(NamedTuple):
    """Stored probabilities of a teacher, and how much of the loss they make. They have no gradient."""

    x: StoredShares
    """Those of tokens [T, S, R, L]."""
    soft: SoftLoss


def sum_losses(
    head: LmHead,
    num_chunks: int,
    x_TSRLD: jax.Array,
    matrix: jax.Array,
    targets: jax.Array,
    weights: jax.Array,
    teacher: TeacherStates | StoredStates | None = None,
) -> TokenLosses:
    """Return the weighted sums of the losses, float32 scalars. A token of weight 0 may have any loss.

    Targets and weights are [T, S, R, L]. Their gradients are those of the total: it alone may be differentiated.
    `TeacherStates` are those of `head.teacher`.
    """

    @jax.custom_vjp
    def sums(
        x: jax.Array,
        matrix: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        teacher: TeacherStates | StoredStates | None,
    ) -> TokenLosses:
        losses: TokenLosses = _run(head, num_chunks, x, matrix, targets, teacher=teacher)[0]
        return losses.sum(weights)

    def forward(
        x: jax.Array,
        matrix: jax.Array,
        targets: jax.Array,
        weights: jax.Array,
        teacher: TeacherStates | StoredStates | None,
    ) -> Any:
        losses, dx, *dmatrix = _run(head, num_chunks, x, matrix, targets, weights, teacher)
        return losses.sum(weights), (dx, dmatrix, losses.total)

    def backward(saved: tuple[jax.Array, list[jax.Array], jax.Array], grads: TokenLosses) -> Any:
        dx, dmatrix, losses = jax.tree.map(lambda leaf: (leaf * grads.total).astype(leaf.dtype), saved)
        return dx, next(iter(dmatrix), None), None, losses, None

    sums.defvjp(forward, backward)
    result: TokenLosses = sums(x_TSRLD, matrix, targets, weights, teacher)
    return result


def token_losses(head: LmHead, num_chunks: int, x_TSRLD: jax.Array, matrix: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the cross-entropy of each target [T, S, R, L] in float32, without any z-loss."""
    head = replace(head, z_loss=None, counts_hits=False, teacher=None)

    @jax.custom_vjp
    def losses(x: jax.Array, matrix: jax.Array, targets: jax.Array) -> jax.Array:
        found: jax.Array = _run(head, num_chunks, x, matrix, targets)[0].cross_entropy
        return found

    def forward(x: jax.Array, matrix: jax.Array, targets: jax.Array) -> Any:
        return losses(x, matrix, targets), (x, matrix, targets)

    def backward(saved: tuple[jax.Array, jax.Array, jax.Array], grads: jax.Array) -> Any:
        x, matrix, targets = saved
        _, dx, *dmatrix = _run(head, num_chunks, x, matrix, targets, grads)
        return dx, next(iter(dmatrix), None), None

    losses.defvjp(forward, backward)
    result: jax.Array = losses(x_TSRLD, matrix, targets)
    return result


@dataclass(frozen=True)
class _Shards:
    """Mesh axes that shard the arguments of one pass."""

    vocab: tuple[str, ...]
    """Those of the logits' columns."""
    tokens: tuple[str, ...]
    width: tuple[str, ...]
    """Those of them over which the gradient of the matrix is scattered along the model width."""


def _run(
    head: LmHead,
    num_chunks: int,
    x: jax.Array,
    matrix: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None = None,
    teacher: TeacherStates | StoredStates | None = None,
) -> tuple[Any, ...]:
    """Return the `TokenLosses` and, with weights, the gradients of the weighted sum of their total.

    A frozen matrix has none. The gradient of the matrix is sharded like the stored matrix by the built-in rules.
    """
    if isinstance(teacher, TeacherStates):
        teacher = teacher._replace(matrix=teacher.matrix.astype(head.dtype))
    arguments = (x, matrix.astype(head.dtype), targets, weights, teacher)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        found: Any = _run_shard(head, num_chunks, _Shards((), (), ()), *arguments)
    else:
        hidden, tokens = partition_spec(HIDDEN, x.shape, mesh), partition_spec(TOKENS, targets.shape, mesh)
        gathered, stored = (partition_spec(head.axes(width), matrix.shape, mesh) for width in (None, "embed"))
        dims = ((gathered[head.vocab_dim],), tokens, (stored[1 - head.vocab_dim],))
        shards = _Shards(*(tuple(name for name in _names(dim) if mesh.shape[name] > 1) for dim in dims))
        optional = (head.z_loss is not None, head.counts_hits, teacher is not None)
        losses: Any = tokens, tokens, *(tokens if is_computed else None for is_computed in optional)
        mapped: Any = jax.shard_map(
            partial(_run_shard, head, num_chunks, shards),
            in_specs=(
                hidden,
                gathered,
                tokens,
                None if weights is None else tokens,
                _teacher_specs(head, teacher, mesh),
            ),
            out_specs=(TokenLosses(*losses), hidden, stored)[: 1 if weights is None else 2 + head.is_trained],
            check_vma=False,
        )
        found = mapped(*arguments)
    # A gradient has the format of its argument.
    losses, *grads = found
    return losses, *(grad.astype(argument.dtype) for grad, argument in zip(grads, (x, matrix), strict=False))


def _teacher_specs(head: LmHead, teacher: TeacherStates | StoredStates | None, mesh: Any) -> Any:
    """Return how the mesh shards the states of a teacher, as a tree of the same structure."""
    if teacher is None:
        return None
    specs: Any = [partition_spec(HIDDEN[: leaf.ndim], leaf.shape, mesh) for leaf in jax.tree.leaves(teacher.x)]
    if isinstance(teacher, TeacherStates) and head.teacher is not None:
        specs.append(partition_spec(head.teacher.axes(None), teacher.matrix.shape, mesh))
    specs += [PartitionSpec(), PartitionSpec()]
    return jax.tree.unflatten(jax.tree.structure(teacher), specs)


def _names(entries: Iterable[str | tuple[str, ...] | None]) -> Iterator[str]:
    """Yield the mesh axes of entries of a `PartitionSpec`."""
    for entry in entries:
        yield from (entry,) if isinstance(entry, str) else entry or ()


def _run_shard(
    head: LmHead,
    num_chunks: int,
    shards: _Shards,
    x: jax.Array,
    matrix: jax.Array,
    targets: jax.Array,
    weights: jax.Array | None = None,
    teacher: TeacherStates | StoredStates | None = None,
) -> tuple[Any, ...]:
    """Return the result of `_run` for the shards of one device: losses and, with weights, both gradients."""
    num_tokens = targets.size
    chunk = -(-num_tokens // num_chunks)
    columns = jnp.arange(matrix.shape[head.vocab_dim])
    if shards.vocab:
        columns += jax.lax.axis_index(shards.vocab) * columns.size

    def split(array: jax.Array) -> jax.Array:
        """Return the tokens [N, C, ...] of chunks, the last of which is padded with zeros."""
        flat = array.reshape(num_tokens, *array.shape[targets.ndim :])
        padded = jnp.pad(flat, [(0, num_chunks * chunk - num_tokens), *[(0, 0)] * (flat.ndim - 1)])
        return padded.reshape(num_chunks, chunk, *flat.shape[1:])

    def merge(chunks: jax.Array) -> jax.Array:
        return chunks.reshape(num_chunks * chunk, *chunks.shape[2:])[:num_tokens].reshape(
            *targets.shape, *chunks.shape[2:]
        )

    def step(dmatrix: Any, chunk: Any) -> Any:
        x_CD, targets_C, weights_C, taught_C = chunk
        logits_CV, finish = jax.vjp(head.finish, head.multiply(x_CD, matrix))
        losses_C, grads_CV = _differentiate(head, teacher, logits_CV, targets_C, taught_C, columns, shards.vocab)
        if weights_C is None:
            return None, (losses_C, None)
        grads_CV *= weights_C[:, None]
        # The logits of a token without weight may be infinite.
        (grads_CV,) = finish(jnp.where(weights_C[:, None] != 0, grads_CV, 0.0))
        dx_CD, added = head.pull_back(x_CD, matrix, grads_CV)
        # Devices with other columns of the vocabulary add the rest, in float32.
        total = None if added is None else dmatrix + added
        return total, (losses_C, dx_CD if shards.vocab else dx_CD.astype(head.dtype))

    chunks = (
        split(x),
        split(targets),
        None if weights is None else split(weights),
        None if teacher is None else jax.tree.map(split, teacher.x),
    )
    has_sum = weights is not None and head.is_trained
    dmatrix, (losses, dx) = jax.lax.scan(step, jnp.zeros(matrix.shape, jnp.float32) if has_sum else None, chunks)
    losses = jax.tree.map(merge, losses)
    if weights is None:
        return (losses,)
    dx = jax.lax.psum(merge(dx), shards.vocab)
    if dmatrix is None:
        return losses, dx
    if shards.width:
        dmatrix = jax.lax.psum_scatter(dmatrix, shards.width, scatter_dimension=1 - head.vocab_dim, tiled=True)
    dmatrix = jax.lax.psum(dmatrix, tuple(axis for axis in shards.tokens if axis not in shards.width))
    return losses, dx, dmatrix


def _differentiate(
    head: LmHead,
    teacher: TeacherStates | StoredStates | None,
    logits_CV: jax.Array,
    targets_C: jax.Array,
    taught_C: jax.Array | StoredShares | None,
    columns_V: jax.Array,
    vocab_axes: tuple[str, ...],
) -> tuple[TokenLosses, jax.Array]:
    """Return the losses of tokens [C], and the gradients [C, V] of their totals by the logits.

    `taught_C` are the hidden states [C, D] of the teacher, or its stored probabilities, if there is one.
    """
    log_sums_C, target_logits_C, hits_C = _reduce_logits(logits_CV, targets_C, columns_V, head, vocab_axes)
    losses_C = lose(head.z_loss, log_sums_C, target_logits_C)._replace(hits=hits_C)
    shares_CV = jnp.exp(logits_CV - log_sums_C[:, None])
    grads_CV = shares_CV - (targets_C[:, None] == columns_V[None, :])
    if teacher is not None and taught_C is not None:
        if isinstance(taught_C, StoredShares):
            divergence = diverge_from_stored(logits_CV, log_sums_C, taught_C, columns_V, vocab_axes)
        else:
            assert isinstance(teacher, TeacherStates) and head.teacher is not None  # noqa: PT018, S101
            taught_CV = head.teacher.finish(head.teacher.multiply(taught_C, teacher.matrix))
            divergence = diverge(logits_CV, taught_CV, teacher.soft.temperature, vocab_axes)
        losses_C = add_divergence(losses_C, teacher.soft, divergence.values)
        weight = teacher.soft.weight
        grads_CV = (1 - weight) * grads_CV + weight * divergence.gradient
    if head.z_loss is not None:
        grads_CV += 2 * head.z_loss * log_sums_C[:, None] * shares_CV
    return losses_C, grads_CV


def _reduce_logits(
    logits_CV: jax.Array, targets_C: jax.Array, columns_V: jax.Array, head: LmHead, vocab_axes: tuple[str, ...]
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Return the logarithm of the sum of the exponentials, the logits of the targets, and their hits, all [C]."""
    is_target_CV = targets_C[:, None] == columns_V[None, :]
    top_C = jax.lax.pmax(jnp.max(logits_CV, axis=-1), vocab_axes)
    sums_C = jnp.sum(jnp.exp(logits_CV - top_C[:, None]), axis=-1)
    # Comparison instead of a gather: the column of a target may lie on another device.
    logits_C = jnp.sum(jnp.where(is_target_CV, logits_CV, 0.0), axis=-1)
    earlier_C = count_earlier(logits_CV, top_C, targets_C, columns_V) if head.counts_hits else None
    sums_C, logits_C, earlier_C = jax.lax.psum((sums_C, logits_C, earlier_C), vocab_axes)
    hits_C = None if earlier_C is None else find_hits(top_C, logits_C, earlier_C)
    return top_C + jnp.log(sums_C), logits_C, hits_C
