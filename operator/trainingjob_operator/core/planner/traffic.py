"""How many bytes a device sends in a train step, over which network and along which mesh axes, from the spec alone.

Bytes are those of rings: of N bytes over n devices a gather and a scattered sum send N (n-1)/n, a sum twice as much.
What is sent:

- Along the axes that split parameters at rest (fsdp, expert, context): each layer's matrices are gathered for the way
  forward and for the way back, and their gradients are summed, in every microstep and in the format of computation;
  the head is gathered once, and its gradients are summed in float32. The embedding table is gathered whole; each
  device sums a part of its gradient's width, for which the gradient of the stream is exchanged.
- Along tensor: the stream is summed after attention and after the MLP, forward and back, and once behind the head.
- Along context: keys and values are gathered, their gradients summed. Along expert: tokens go to their places and back.
- Along stage: the stream moves on to the next stage, and its gradient back, each with sums that pick who reads it.
- Along data: the float32 gradients are summed, once a step.

The rest is what compilers were seen to do (libtpu 0.0.52, jaxlib 0.12.0.1). XLA for TPUs takes some of the gathers
apart, to send a piece beside the product with the piece before it; with four devices and more such a ring sends up to
two pieces more than it must. XLA for CPUs sends everything in float32 and scatters no sums.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainingjob_api.base import AXES, Axis
from trainingjob_api.compiled import Network
from trainingjob_api.sharding import RULES, count_ways
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine, pipeline_ticks
from trainingjob_operator.core.planner.parameters import Leaf, list_leaves
from trainingjob_operator.core.planner.workload import FLOAT32, Workload

PIECEWISE = 4
"""Devices of a ring from which on XLA for TPUs takes it apart."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that a device sends in one step."""

    network: Network
    axes: tuple[Axis, ...]
    num_bytes: int
    is_awaited: bool
    """Whether the next product waits for it; else it travels beside products."""


@dataclass(frozen=True)
class _Ring:
    """A group of devices along some axes."""

    axes: tuple[Axis, ...]
    ici: int
    dcn: int
    platform: str

    @property
    def is_piecewise(self) -> bool:
        """Whether the compiler takes its gathers apart."""
        return self.platform == "tpu" and self.ici >= PIECEWISE and len(self.axes) == 1

    @property
    def size(self) -> int:
        """Return the number of devices."""
        return self.ici * self.dcn

    def scatter(self, num_bytes: float, extra: int = 0) -> Iterator[Traffic]:
        """Yield what a sum of so many bytes sends of which each device keeps a part."""
        yield from self.sum(num_bytes) if self.platform == "cpu" else self.gather(num_bytes, extra=extra)

    def gather(self, num_bytes: float, *, is_awaited: bool = False, extra: int = 0) -> Iterator[Traffic]:
        """Yield what a gather of so many bytes sends; `extra` pieces more go around than must."""
        if self.ici > 1:
            pieces = self.ici - 1 + (extra if self.is_piecewise else 0)
            yield Traffic("ici", self.axes, round(num_bytes / self.ici * pieces), is_awaited)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(num_bytes / self.size * (self.dcn - 1)), is_awaited)

    def exchange(self, num_bytes: float) -> Iterator[Traffic]:
        """Yield the traffic of an all-to-all: each device sends a part of its bytes to every other device."""
        if self.ici > 1:
            yield Traffic("ici", self.axes, round(num_bytes * (self.ici - 1) / self.size), is_awaited=False)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(num_bytes * (self.dcn - 1) / self.dcn), is_awaited=False)

    def sum(self, num_bytes: float, *, is_awaited: bool = False) -> Iterator[Traffic]:
        """Yield what a sum of so many bytes sends: first inside slices, then parts of it between them."""
        if self.ici > 1:
            yield Traffic("ici", self.axes, round(2 * num_bytes * (self.ici - 1) / self.ici), is_awaited)
        if self.dcn > 1:
            yield Traffic("dcn", self.axes, round(2 * num_bytes / self.ici * (self.dcn - 1) / self.dcn), is_awaited)


def predict_traffic(workload: Workload, layout: Layout, platform: str) -> tuple[Traffic, ...]:
    """Return what a device sends in one step of a layout. `platform` is JAX's name: `cpu`, `tpu` or `cuda`."""
    return tuple(one for one in _Step(workload, layout, platform).all() if one.num_bytes)


class _Step:
    """The terms of one step."""

    def __init__(self, workload: Workload, layout: Layout, platform: str) -> None:
        self._workload = workload
        self._layout = layout
        self._platform = platform
        self._compute = FLOAT32 if platform == "cpu" else workload.compute_bytes
        """Bytes of a number that is sent."""
        self._degrees = combine(layout.ici, layout.dcn)
        self._ways = count_ways(self._degrees)
        self._again = workload.remat == "full"
        self._is_replicated = self._degrees["data"] > 1
        self._is_staged = self._degrees["stage"] > 1
        self._turns = layout.accumulation * pipeline_ticks(layout.microbatches, self._degrees["stage"])
        """How often a stage runs in a step, with microbatches or idle."""
        self._reads = layout.accumulation * layout.microbatches // self._degrees["stage"]
        """How often a device runs the head in a step."""

    def all(self) -> Iterator[Traffic]:
        """Yield every term."""
        matrices = [leaf for leaf in list_leaves(self._workload.model) if not leaf.name.endswith(".scale")]
        for leaf in matrices:
            if "layers" in leaf.axes:
                yield from self._move_layer(leaf)
        yield from self._move_embedding()
        yield from self._move_head()
        yield from self._sum_streams()
        yield from self._exchange()
        held = sum(leaf.shard_size(self._ways) for leaf in matrices)
        yield from self._ring(("data",)).sum(FLOAT32 * held, is_awaited=True)

    def _ring(self, axes: tuple[Axis, ...]) -> _Ring:
        ici = math.prod(getattr(self._layout.ici, axis) for axis in axes)
        dcn = math.prod(getattr(self._layout.dcn, axis) for axis in axes)
        split = tuple(axis for axis in AXES if axis in axes and self._degrees[axis] > 1)
        return _Ring(split, ici, dcn, self._platform)

    def _move_layer(self, leaf: Leaf) -> Iterator[Traffic]:
        """Yield what one matrix of the layers sends: gathered forward and back, its gradient summed."""
        rule = "expert_embed" if "expert_embed" in leaf.axes else "embed"
        ring = self._ring(RULES[rule])
        size = self._turns * self._compute * leaf.gathered_size(self._ways) // self._degrees["stage"]
        more = 2 if ring.ici > PIECEWISE else 0
        yield from ring.gather(size, extra=more)
        # Going back over a layer that is computed again, one gather serves both; the last products of each half of the
        # layer need not be computed again, so that theirs stay apart.
        is_last = leaf.name.endswith((".out", ".down"))
        yield from ring.gather(size, extra=more if is_last or not self._again else 0)
        if self._again and leaf.name.endswith(".out") and ring.is_piecewise and not self._is_replicated:
            yield from ring.gather(size, extra=more)
        # Of four pieces the two sums of zeros that begin a ring are made once for matrices of the same shape. Beside
        # replicas some TPUs take these sums apart and others do not: one piece is between both.
        twins = (".value", ".up", ".down") if self._is_replicated else (".value", ".up")
        is_twin = leaf.name.endswith(twins) and ring.ici == PIECEWISE
        yield from ring.scatter(size, extra=0 if is_twin else 1 if self._is_replicated else 2)
        fsdp, context = self._ring(("fsdp",)), self._ring(("context",))
        if leaf.name.endswith(".out") and min(fsdp.size, context.size) > 1 and not self._workload.is_cpu:
            # Where both axes split tokens, TPUs sum a part of this gradient along one after the other.
            yield from fsdp.sum(size / context.size)
            yield from context.sum(size / fsdp.size)

    def _move_embedding(self) -> Iterator[Traffic]:
        """Yield the traffic of the embedding: gathers of the whole table, and the exchange of the stream's gradient."""
        model, compute = self._workload.model, self._compute
        microsteps = self._layout.accumulation * self._layout.microbatches
        table = compute * model.vocab_size * model.embed_dim
        if self._workload.is_cpu:
            times = 1 if self._is_replicated else microsteps
            yield from self._ring(RULES["embed"]).gather(times * table // self._degrees["tensor"])
            yield from self._ring(RULES["vocab"]).gather(table)
        else:
            # Without replicas XLA gathers the table once for all microsteps.
            whole = self._ring((*RULES["embed"], *RULES["vocab"]))
            yield from whole.gather((microsteps if self._is_replicated else 1) * table)
        # A device sums a part of the gradient's width over all rows, then over the whole length.
        exchanged: tuple[tuple[Axis, ...], ...] = (("fsdp", "expert"), ("context",))
        for axes in exchanged:
            yield from self._ring(axes).exchange(microsteps * self._stream)

    def _move_head(self) -> Iterator[Traffic]:
        """Yield what the output projection sends: gathered once a microstep, its gradient summed in float32."""
        model = self._workload.model
        ring = self._ring(RULES["embed"])
        size = model.vocab_size * model.embed_dim // self._degrees["tensor"]
        if self._workload.is_cpu or (self._is_replicated and ring.is_piecewise):
            # XLA gathers it once for all microsteps; on CPUs it gathers it in each, after the stream.
            yield from ring.gather((self._reads if self._workload.is_cpu else 1) * self._compute * size)
            yield from ring.scatter(self._reads * FLOAT32 * size)
        else:
            # Between the turns of a pipeline the gathered head is not kept for the way back.
            yield from ring.gather((1 + self._is_staged) * self._reads * self._compute * size)
            yield from ring.scatter(self._reads * FLOAT32 * size, extra=2)

    @property
    def _stream(self) -> int:
        """Return the bytes of the stream of a microbatch on one device."""
        rows = self._layout.rows_per_shard * (self._workload.length // self._degrees["context"])
        return rows * self._workload.model.embed_dim * self._compute

    @property
    def _layers(self) -> int:
        """Return how often a device runs a layer in a step."""
        return self._turns * self._workload.model.num_layers // self._degrees["stage"]

    def _sum_streams(self) -> Iterator[Traffic]:
        """Yield the sums of the stream over tensor: after attention and MLP, forward and back, and behind the head."""
        ring = self._ring(RULES["heads"])
        after_attention, after_mlp = 2 + self._again, 2 * self._places
        if self._workload.is_cpu:  # going back over matrices that read the same, it sums what comes from each
            after_attention, after_mlp = after_attention + 2, after_mlp + 1
        yield from ring.sum(self._layers * (after_attention + after_mlp) * self._stream, is_awaited=True)
        yield from ring.sum(self._reads * self._stream, is_awaited=True)

    @property
    def _places(self) -> float:
        """Return in how many places of experts a token is computed, those that stay empty counted; 1 in an MLP."""
        experts, length = self._workload.model.experts, self._workload.length
        if experts is None:
            return 1.0
        return experts.count * experts.capacity(length) / experts.tokens_of_group(length) + experts.shared

    def _exchange(self) -> Iterator[Traffic]:
        """Yield what goes between tokens: keys and values along context, tokens to experts, streams to stages."""
        model, workload = self._workload.model, self._workload
        context, expert, stage = (self._ring((axis,)) for axis in ("context", "expert", "stage"))
        tokens = self._layout.rows_per_shard * workload.length * self._layers
        # Keys travel before they are cast from the float32 in which they were rotated.
        keys = tokens * model.head_dim * model.num_kv_heads // self._degrees["tensor"] * (FLOAT32 + self._compute)
        yield from context.gather((1 + self._again) * keys, is_awaited=True)
        yield from context.scatter(keys)
        if model.experts:
            ways = 6 if self._again else 4  # there and back: forward, backward, and where layers are computed again
            yield from expert.gather(ways * self._layers * self._places * self._stream, is_awaited=True)
        if self._is_staged:
            yield from self._move_on(stage)

    def _move_on(self, stage: _Ring) -> Iterator[Traffic]:
        """Yield what a pipeline sends, as XLA was seen to make it."""
        network: Network = "dcn" if stage.dcn > 1 else "ici"
        yield Traffic(network, stage.axes, 3 * self._turns * self._stream, is_awaited=True)
        yield from stage.sum(2 * self._turns * self._stream, is_awaited=True)
        microbatches = self._layout.accumulation * self._layout.microbatches
        yield from stage.gather(microbatches * self._stream, is_awaited=True)
        # Every stage embeds, so that the table's gradients are summed over stages too, and every turn gathers what all
        # turns hand on.
        split = self._ring(RULES["embed"])
        table = FLOAT32 * self._workload.model.vocab_size * self._workload.model.embed_dim
        yield from stage.sum(table / split.size / self._degrees["tensor"], is_awaited=True)
        yield from split.gather(self._turns**2 / self._layout.accumulation * split.size * self._stream)


def sum_by_axes(traffic: tuple[Traffic, ...]) -> Mapping[tuple[Network, tuple[Axis, ...]], int]:
    """Return the bytes over each network along each set of axes."""
    sums: dict[tuple[Network, tuple[Axis, ...]], int] = {}
    for one in traffic:
        sums[one.network, one.axes] = sums.get((one.network, one.axes), 0) + one.num_bytes
    return sums
