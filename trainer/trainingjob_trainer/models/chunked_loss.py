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


class TokenLosses(NamedTuple):
    """Losses of tokens in float32, or sums of them."""

    cross_entropy: jax.Array
    penalty: jax.Array | None
    """The z-loss. None: there is none."""
    hits: jax.Array | None = None
    """1 for a token whose target has the largest logit; of equal logits, the first counts. None: not computed."""

    @property
    def total(self) -> jax.Array:
        """Return what training minimizes."""
        return self.cross_entropy if self.penalty is None else self.cross_entropy + self.penalty

    def sum(self, weights: jax.Array) -> "TokenLosses":
        """Return the weighted sums. The losses of a token of weight 0 may be infinite."""
        weigh = partial(_sum_weighted, weights)
        sums: TokenLosses = jax.tree.map(weigh, self)
        return sums


def sum_losses(
    head: LmHead, num_chunks: int, x_TSRLD: jax.Array, matrix: jax.Array, targets: jax.Array, weights: jax.Array
) -> TokenLosses:
    """Return the weighted sums of the losses, float32 scalars. A token of weight 0 may have any loss.

    Targets and weights are [T, S, R, L]. Their gradients are those of the total: it alone may be differentiated.
    """

    @jax.custom_vjp
    def sums(x: jax.Array, matrix: jax.Array, targets: jax.Array, weights: jax.Array) -> TokenLosses:
        losses: TokenLosses = _run(head, num_chunks, x, matrix, targets)[0]
        return losses.sum(weights)

    def forward(x: jax.Array, matrix: jax.Array, targets: jax.Array, weights: jax.Array) -> Any:
        losses, dx, *dmatrix = _run(head, num_chunks, x, matrix, targets, weights)
        return losses.sum(weights), (dx, dmatrix, losses.total)

    def backward(saved: tuple[jax.Array, list[jax.Array], jax.Array], grads: TokenLosses) -> Any:
        dx, dmatrix, losses = jax.tree.map(lambda leaf: (leaf * grads.cross_entropy).astype(leaf.dtype), saved)
        return dx, next(iter(dmatrix), None), None, losses

    sums.defvjp(forward, backward)
    result: TokenLosses = sums(x_TSRLD, matrix, targets, weights)
    return result


def token_losses(head: LmHead, num_chunks: int, x_TSRLD: jax.Array, matrix: jax.Array, targets: jax.Array) -> jax.Array:
    """Return the cross-entropy of each target [T, S, R, L] in float32, without any z-loss."""
    head = replace(head, z_loss=None, counts_hits=False)

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


def _sum_weighted(weights: jax.Array, losses: jax.Array) -> jax.Array:
    return jnp.sum(jnp.where(weights != 0, losses * weights, 0.0))  # 0 x infinity must not reach the sum


@dataclass(frozen=True)
class _Shards:
    """Mesh axes that shard the arguments of one pass."""

    vocab: tuple[str, ...]
    """Those of the logits' columns."""
    tokens: tuple[str, ...]
    width: tuple[str, ...]
    """Those of them over which the gradient of the matrix is scattered along the model width."""


def _run(
    head: LmHead, num_chunks: int, x: jax.Array, matrix: jax.Array, targets: jax.Array, weights: jax.Array | None = None
) -> tuple[Any, ...]:
    """Return the `TokenLosses` and, with weights, the gradients of the weighted sum of their total.

    A frozen matrix has none. The gradient of the matrix is sharded like the stored matrix by the built-in rules.
    """
    arguments = (x, matrix.astype(head.dtype), targets, *([] if weights is None else [weights]))
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        found: Any = _run_shard(head, num_chunks, _Shards((), (), ()), *arguments)
    else:
        hidden, tokens = partition_spec(HIDDEN, x.shape, mesh), partition_spec(TOKENS, targets.shape, mesh)
        gathered, stored = (partition_spec(head.axes(width), matrix.shape, mesh) for width in (None, "embed"))
        dims = ((gathered[head.vocab_dim],), tokens, (stored[1 - head.vocab_dim],))
        shards = _Shards(*(tuple(name for name in _names(dim) if mesh.shape[name] > 1) for dim in dims))
        losses: Any = tokens, None if head.z_loss is None else tokens, tokens if head.counts_hits else None
        mapped: Any = jax.shard_map(
            partial(_run_shard, head, num_chunks, shards),
            in_specs=(hidden, gathered, tokens, *([] if weights is None else [tokens])),
            out_specs=(TokenLosses(*losses), hidden, stored)[: 1 if weights is None else 2 + head.is_trained],
            check_vma=False,
        )
        found = mapped(*arguments)
    # A gradient has the format of its argument.
    losses, *grads = found
    return losses, *(grad.astype(argument.dtype) for grad, argument in zip(grads, (x, matrix), strict=False))


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
        x_CD, targets_C, weights_C = chunk
        logits_CV, finish = jax.vjp(head.finish, head.multiply(x_CD, matrix))
        log_sums_C, target_logits_C, hits_C = _reduce_logits(logits_CV, targets_C, columns, head, shards.vocab)
        losses_C = _lose(head.z_loss, log_sums_C, target_logits_C)._replace(hits=hits_C)
        if weights_C is None:
            return None, (losses_C, None)
        shares_CV = jnp.exp(logits_CV - log_sums_C[:, None])
        if head.z_loss is not None:
            shares_CV *= 1 + 2 * head.z_loss * log_sums_C[:, None]
        grads_CV = (shares_CV - (targets_C[:, None] == columns[None, :])) * weights_C[:, None]
        # The logits of a token without weight may be infinite.
        (grads_CV,) = finish(jnp.where(weights_C[:, None] != 0, grads_CV, 0.0))
        dx_CD, added = head.pull_back(x_CD, matrix, grads_CV)
        # Devices with other columns of the vocabulary add the rest, in float32.
        total = None if added is None else dmatrix + added
        return total, (losses_C, dx_CD if shards.vocab else dx_CD.astype(head.dtype))

    chunks = (split(x), split(targets), None if weights is None else split(weights))
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


def losses_of_logits(
    logits_RLV: jax.Array, targets_RL: jax.Array, z_loss: float | None = None, *, counts_hits: bool = False
) -> TokenLosses:
    """Return the losses of targets [R, L] from whole logits in float32."""
    columns = jnp.arange(logits_RLV.shape[-1])
    # Comparison instead of a gather, which XLA cannot partition over the vocabulary in a partly manual shard_map.
    is_target_RLV = targets_RL[..., None] == columns[None, None, :]
    target_logits_RL = jnp.sum(jnp.where(is_target_RLV, logits_RLV, 0.0), axis=-1)
    losses = _lose(z_loss, jax.nn.logsumexp(logits_RLV, axis=-1), target_logits_RL)
    if not counts_hits:
        return losses
    top_RL = jnp.max(logits_RLV, axis=-1)
    earlier_RL = _count_earlier(logits_RLV, top_RL, targets_RL, columns)
    return losses._replace(hits=_find_hits(top_RL, target_logits_RL, earlier_RL))


def _lose(z_loss: float | None, log_sums: jax.Array, target_logits: jax.Array) -> TokenLosses:
    """Return losses from the logarithms of the sums of exponentials, and the logits of targets."""
    penalty = None if z_loss is None else z_loss * log_sums**2
    return TokenLosses(log_sums - target_logits, penalty)


def _count_earlier(logits_V: jax.Array, top: jax.Array, targets: jax.Array, columns_V: jax.Array) -> jax.Array:
    """Return how many columns before the target have the largest logit, float32 of the shape of the targets.

    `logits_V` have the columns as their last dim.
    """
    before_V = jnp.expand_dims(columns_V, tuple(range(targets.ndim))) < targets[..., None]
    is_earlier_V = (logits_V == top[..., None]) & before_V
    return jnp.sum(is_earlier_V.astype(jnp.float32), axis=-1)


def _find_hits(top: jax.Array, target_logits: jax.Array, earlier: jax.Array) -> jax.Array:
    """Return 1 where the target is the column that `argmax` finds, else 0, float32. Logits of NaN hit nothing."""
    return ((target_logits == top) & (earlier == 0)).astype(jnp.float32)


def _reduce_logits(
    logits_CV: jax.Array, targets_C: jax.Array, columns_V: jax.Array, head: LmHead, vocab_axes: tuple[str, ...]
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
    """Return the logarithm of the sum of the exponentials, the logits of the targets, and their hits, all [C]."""
    is_target_CV = targets_C[:, None] == columns_V[None, :]
    top_C = jax.lax.pmax(jnp.max(logits_CV, axis=-1), vocab_axes)
    sums_C = jnp.sum(jnp.exp(logits_CV - top_C[:, None]), axis=-1)
    # Comparison instead of a gather: the column of a target may lie on another device.
    logits_C = jnp.sum(jnp.where(is_target_CV, logits_CV, 0.0), axis=-1)
    earlier_C = _count_earlier(logits_CV, top_C, targets_C, columns_V) if head.counts_hits else None
    sums_C, logits_C, earlier_C = jax.lax.psum((sums_C, logits_C, earlier_C), vocab_axes)
    hits_C = None if earlier_C is None else _find_hits(top_C, logits_C, earlier_C)
    return top_C + jnp.log(sums_C), logits_C, hits_C
