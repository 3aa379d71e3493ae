"""Bytes that a device sends in a train step, by network and mesh axes, derived from the spec alone.

`device_group` counts the bytes of a collective. The collectives of a step are:

- Along the axes that shard stored parameters (fsdp, expert, context): an all-gather of each layer's matrices in the
  forward and in the backward pass, and a reduction of their gradients, per microbatch and in the compute format. The
  LM head is gathered once, and its gradients are reduced in float32. The embedding table is gathered as a whole. Each
  device reduces a part of its gradient's width, which needs an exchange of the hidden states' gradient.
- Along tensor: all-reduces of the hidden states after attention and MLP, in both passes, and once after the LM head.
- Along context: an all-gather of keys and values, and a reduction of their gradients. Ring attention sends them around
  the ring, in the backward pass with their gradients in float32. Along expert: dispatch of tokens, and the combine.
- Along stage: the hidden states go to the next stage, and their gradient to the previous one, each with an all-reduce.
- Along data: an all-reduce of the float32 gradients, once per step.

The other terms follow programs that compilers emitted (libtpu 0.0.52, jaxlib 0.12.0.1). XLA for CPUs sends everything
in float32. Matrices of quantized matmuls are gathered in the narrow format.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainingjob_api.base import AXES, Axis
from trainingjob_api.compile_report import Network
from trainingjob_api.network.activations import PRODUCTS
from trainingjob_api.network.block import Block
from trainingjob_api.network.part import PartTraffic
from trainingjob_api.network.ring_blocks import count_ring_hops
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.network.tensor import GATHERED_AXES, OUTPUTS, DecayClass, Gradients, Role, Tensor
from trainingjob_api.optim import is_orthogonalized
from trainingjob_api.sharding import RULES, count_shards, merge_rules, shards_of_dim
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.device_group import MIN_DECOMPOSED_RING, WHOLE_RING_SLICES, DeviceGroup, Traffic
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.workload import FLOAT32, Workload, count_chunks_of_loss


def predict_traffic(workload: Workload, layout: Layout, platform: str) -> tuple[Traffic, ...]:
    """Return the traffic of a device in one step of a layout. `platform` is JAX's name: `cpu`, `tpu` or `cuda`."""
    terms = (term for model in workload.models for term in _StepTraffic(model, layout, platform).all_terms())
    return tuple(term for term in terms if term.num_bytes)


@dataclass(frozen=True)
class _Runs:
    """How often a device runs the layers of a block in a step."""

    block: Block
    count: int
    has_backward: bool
    runs_forward_twice: bool
    """Whether a pipeline stage runs them forward twice."""


class _StepTraffic:
    """The terms of one step."""

    def __init__(self, workload: Workload, layout: Layout, platform: str) -> None:
        self._workload = workload
        self._network = workload.network
        self._layout = layout
        self._platform = platform
        self._value_bytes = FLOAT32 if platform == "cpu" else workload.compute_bytes
        """Bytes of a number that is sent."""
        self._degrees = combine_degrees(layout.ici, layout.dcn)
        self._ways = count_shards(self._degrees)
        self._groups: dict[tuple[Axis, ...], DeviceGroup] = {}
        saved = workload.memory.saved
        self._has_remat = saved is not None
        self._repeats_projection = saved is not None and "attentionProjection" not in saved.names
        self._is_replicated = self._degrees["data"] > 1
        self._is_pipelined = self._degrees["stage"] > 1
        schedule = workload.schedule(layout)
        self._ticks = layout.accumulation * schedule.ticks
        """How often a stage runs in a step, with microbatches or idle."""
        self._repeats = schedule.repeats
        self._alternates = schedule.alternates
        """Whether a stage runs forward twice."""
        self._lm_head_runs = layout.accumulation * schedule.lm_head_runs
        """How often a device runs the head in a step."""

    def all_terms(self) -> Iterator[Traffic]:
        """Yield every term."""
        matrices = [leaf for leaf in self._network.tensors if leaf.is_matrix]
        for leaf in matrices:
            if leaf.is_stacked:
                yield from self._layer_traffic(leaf)
        yield from self._embedding_traffic()
        yield from self._lm_head_traffic()
        yield from self._tensor_parallel_traffic()
        yield from self._token_traffic()
        if self._workload.newton_schulz_steps:
            yield from self._orthogonalization_traffic()
        sharded_params = sum(leaf.shard_size(self._ways) for leaf in matrices if leaf.is_trainable)
        gradients = self._workload.gradient_bytes * sharded_params
        yield from self._device_group(("data",)).all_reduce(gradients, is_awaited=True)

    def _device_group(self, axes: tuple[Axis, ...]) -> DeviceGroup:
        group = self._groups.get(axes)
        if group is None:
            group = self._groups[axes] = self._make_group(axes)
        return group

    def _make_group(self, axes: tuple[Axis, ...]) -> DeviceGroup:
        ici = math.prod(getattr(self._layout.ici, axis) for axis in axes)
        dcn = math.prod(getattr(self._layout.dcn, axis) for axis in axes)
        split = tuple(axis for axis in AXES if axis in axes and self._degrees[axis] > 1)
        slice_size = math.prod(getattr(self._layout.ici, axis) for axis in AXES)
        is_whole = WHOLE_RING_SLICES.get(self._network.accelerator) == slice_size
        return DeviceGroup(split, ici, dcn, self._platform, is_whole)

    def _layer_traffic(self, leaf: Tensor) -> Iterator[Traffic]:
        """Yield the all-gathers of one matrix of the layers in both passes, and the reduce-scatter of its gradient."""
        rule = "expert_embed" if "expert_embed" in leaf.axes else "embed"
        ring = self._device_group(RULES[rule])
        size = self._count_runs(self._value_bytes * leaf.gathered_size(self._ways), is_module=not leaf.is_layered)
        is_narrow = leaf.name in self._network.quantized and not self._is_copied(leaf)
        gathered = size // self._value_bytes if is_narrow else size
        if not set(leaf.axes) & set(GATHERED_AXES[1:]):  # a side of an adapter is replicated, and its gradient summed
            yield from ring.all_reduce(size * leaf.is_trainable)
            return
        tensor = self._device_group(("tensor",))
        if self._is_latent(leaf) and ring.is_split_over(tensor):
            yield from ring.gather_over(tensor, gathered, size)
            return
        extra_pieces = 2 if ring.ici > MIN_DECOMPOSED_RING and not self._is_copied(leaf) else 0
        yield from ring.all_gather(gathered, extra=extra_pieces)
        if leaf.gradients is Gradients.NONE:
            return
        if self._is_copied(leaf):
            yield from self._copy_traffic(leaf, ring, size)
            return
        if self._alternates and leaf.is_layered:  # the stage runs forward again
            yield from ring.all_gather(gathered, extra=extra_pieces)
        # In the backward pass of a recomputed layer, one gather serves both matmuls. The last matmuls of each half of
        # the layer are not recomputed, so that their gathers stay decomposed.
        is_last = leaf.role in OUTPUTS
        is_mixer_output = leaf.role is Role.MIXER_OUTPUT
        yield from ring.all_gather(gathered, extra=extra_pieces if is_last or not self._has_remat else 0)
        # A matrix that is cast for one of the two matmuls does not serve the other.
        is_recast = is_narrow and not is_last and self._is_repeated(leaf)
        is_regathered = self._has_remat and is_mixer_output and ring.is_decomposed and not self._is_replicated
        if is_recast or is_regathered:
            yield from ring.all_gather(gathered, extra=extra_pieces)
        if not leaf.is_trainable:
            return
        # With four pieces, matrices of the same shape share the two sums of zeros that begin a ring. With replicas,
        # some TPUs decompose these sums and others do not: one piece is the mean of both.
        same_shape = (Role.PAIRED_INPUT, Role.MLP_OUTPUT) if self._is_replicated else (Role.PAIRED_INPUT,)
        has_same_shape = leaf.role in same_shape and ring.ici == MIN_DECOMPOSED_RING
        yield from ring.reduce_scatter(size, extra_pieces=0 if has_same_shape else 1 if self._is_replicated else 2)
        fsdp, context = self._device_group(("fsdp",)), self._device_group(("context",))
        if is_mixer_output and min(fsdp.size, context.size) > 1 and not self._workload.is_cpu:
            # If both axes shard the tokens, TPUs reduce a part of this gradient along one axis after the other.
            yield from fsdp.all_reduce(size / context.size)
            yield from context.all_reduce(size / fsdp.size)

    def _copy_traffic(self, leaf: Tensor, ring: DeviceGroup, size: int) -> Iterator[Traffic]:
        """Yield the traffic of a matrix of dropless experts after its first all-gather.

        The backward pass reads the gathered copy, unless it recomputes the layer. No matmul is decomposed: the program
        gathers and scatters explicitly.
        """
        if self._has_remat or (self._alternates and leaf.is_layered):
            yield from ring.all_gather(size)
        yield from ring.reduce_scatter(size * leaf.is_trainable)

    def _is_latent(self, leaf: Tensor) -> bool:
        """Return whether all devices along `tensor` compute the same products of a matrix: latent vectors.

        Pipelines were not compiled with them.
        """
        return not self._is_pipelined and leaf.is_trainable and leaf.axes[-2:] == ("embed", "head")

    def _is_repeated(self, leaf: Tensor) -> bool:
        """Return whether the backward pass recomputes the matmul of a matrix."""
        saved = self._workload.memory.saved
        return saved is not None and PRODUCTS[leaf.local_name] not in saved.names

    def _is_copied(self, leaf: Tensor) -> bool:
        """Return whether each device gathers a matrix in the compute format: a matrix of dropless experts."""
        part = next((block.mlp for block in self._network.blocks if isinstance(block.mlp, RoutedMlp)), None)
        return leaf.decay is DecayClass.EXPERT and part is not None and part.experts.dispatch == "dropless"

    def _orthogonalization_traffic(self) -> Iterator[Traffic]:
        """Yield the exchanges that gather whole matrices for Muon's updates and shard them again."""
        rules = merge_rules(self._workload.rules.overrides())
        ways = count_shards(self._degrees, rules)
        for leaf in self._network.tensors:
            if leaf.is_trainable and is_orthogonalized(leaf):
                dims = zip(leaf.axes, leaf.shape, strict=True)
                axes = tuple(axis for name, size in dims if shards_of_dim(name, size, ways) > 1 for axis in rules[name])
                num_bytes = FLOAT32 * self._workload.count_whole_matrices(leaf, ways) * math.prod(leaf.matrix_shape)
                yield from self._device_group(axes).exchange(2 * num_bytes)

    def _embedding_traffic(self) -> Iterator[Traffic]:
        """Yield the traffic of the embedding: gathers of the table, and the exchange of the hidden states' gradient."""
        num_microbatches = self._layout.accumulation * self._layout.microbatches
        table = self._value_bytes * self._network.embedding.tensor.size
        if self._workload.is_cpu:
            times = 1 if self._is_replicated else num_microbatches
            yield from self._device_group(RULES["embed"]).all_gather(times * table // self._degrees["tensor"])
            yield from self._device_group(RULES["vocab"]).all_gather(table)
        else:
            # Without replicas XLA gathers the table once for all microbatches.
            group = self._device_group((*RULES["embed"], *RULES["vocab"]))
            yield from group.all_gather((num_microbatches if self._is_replicated else 1) * table)
        if not self._network.table.is_trainable:
            return
        # A device sums a part of the gradient's width over all sequences, then over the whole length.
        exchanged: tuple[tuple[Axis, ...], ...] = (("fsdp", "expert"), ("context",))
        for axes in exchanged:
            yield from self._device_group(axes).exchange(num_microbatches * self._hidden_state_bytes)

    def _lm_head_traffic(self) -> Iterator[Traffic]:
        """Yield the traffic of the LM head: a gather per microbatch, and its gradient in the gradients' format.

        With chunks of the logits, each device first sums the gradient over its chunks and pipeline ticks.
        """
        ring = self._device_group(RULES["embed"])
        gradient_bytes = self._workload.gradient_bytes
        size = self._network.width * self._workload.split_vocabulary(self._degrees)
        trained = size if self._network.head_matrix.is_trainable else 0
        if count_chunks_of_loss(self._workload, self._degrees, self._layout.rows_per_shard) > 1:
            # Gathered once a step. Without stages, TPUs also sum the gradient once, after all accumulation steps.
            yield from ring.all_gather(self._value_bytes * size)
            times = 1 if self._platform == "tpu" and not self._is_pipelined else self._layout.accumulation
            yield from ring.scatter(self._network.num_predictions * times * FLOAT32 * trained)
        elif self._workload.is_cpu or (self._is_replicated and ring.is_decomposed):
            # XLA gathers it once for all microbatches. On CPUs it gathers it in each microbatch.
            yield from ring.all_gather((self._lm_head_runs if self._workload.is_cpu else 1) * self._value_bytes * size)
            yield from ring.reduce_scatter(self._lm_head_runs * gradient_bytes * trained)
        else:
            # Between pipeline ticks the gathered head is not kept for the backward pass, unless that follows at once.
            is_late = self._is_pipelined and not self._alternates and self._network.has_backward
            num_gathers = 2 if is_late else 1
            runs = self._lm_head_runs * (self._network.num_predictions if self._is_pipelined else 1)
            yield from ring.all_gather(num_gathers * runs * self._value_bytes * size)
            yield from ring.reduce_scatter(runs * gradient_bytes * trained, extra_pieces=2)

    @property
    def _hidden_state_bytes(self) -> int:
        """Return the bytes of the hidden states of a microbatch on one device."""
        rows = self._layout.rows_per_shard * (self._workload.length // self._degrees["context"])
        return rows * self._network.width * self._value_bytes

    def _runs(self) -> Iterator[_Runs]:
        """Yield the runs of each block on a device in a step."""
        for block, count in self._network.layer_blocks.items():
            runs = self._count_runs(count)
            yield _Runs(block, runs, has_backward=not block.is_forward_only, runs_forward_twice=self._alternates)
        for block, count in self._network.module_blocks.items():
            runs = self._count_runs(count, is_module=True)
            yield _Runs(block, runs, has_backward=not block.is_forward_only, runs_forward_twice=False)

    def _parts(self, block: Block) -> list[PartTraffic]:
        return [part.traffic(self._workload.length) for part in block.parts.values()]

    def _count_runs(self, count: int, *, is_module: bool = False) -> int:
        """Return how often a device runs a number of layers in a step, or the bytes of all layers in all its runs.

        Modules of further tokens run as often as the LM head.
        """
        if is_module:
            return self._lm_head_runs * count
        return self._ticks * count // (self._degrees["stage"] * self._repeats)

    def _tensor_parallel_traffic(self) -> Iterator[Traffic]:
        """Yield the all-reduces of hidden states over tensor: of each part of a layer, and of the head."""
        ring = self._device_group(RULES["heads"])
        for block, count in self._network.layer_blocks.items():
            if block.adaptation:  # each adapter reduces its inner features once
                features = len(block.adaptation.targets) * block.adaptation.rank
                num_bytes = self._count_runs(count) * features * self._hidden_state_bytes / self._network.width
                yield from ring.all_reduce(num_bytes, is_awaited=True)
        for runs in self._runs():
            parts = self._parts(runs.block)
            sums = sum(part.tensor_sums + part.gathered_sums * self._degrees["expert"] for part in parts)
            extra = sum(
                part.recomputed_sums * self._repeats_projection
                + part.separate_sums * self._workload.is_cpu
                + part.backward_excess
                for part in parts
            )
            num_sums = sums * (1 + runs.runs_forward_twice / 2) + extra if runs.has_backward else sums / 2
            yield from ring.all_reduce(runs.count * num_sums * self._hidden_state_bytes, is_awaited=True)
        backward_runs = self._lm_head_runs * self._network.has_backward
        yield from ring.all_reduce(backward_runs * self._hidden_state_bytes, is_awaited=True)

    def _token_traffic(self) -> Iterator[Traffic]:
        """Yield the traffic between tokens: keys along context, tokens to experts, hidden states to stages."""
        expert, stage = (self._device_group((axis,)) for axis in ("expert", "stage"))
        for runs in self._runs():
            parts = self._parts(runs.block)
            # Dispatch and combine, in both passes. Recomputed layers need no outputs of dropless experts.
            passes = 2 * (1 + runs.has_backward * (1 + runs.runs_forward_twice))
            recomputations = runs.has_backward * self._has_remat
            slots = sum((passes + 2 * recomputations) * part.expert_slots for part in parts)
            tokens = sum(passes * part.gathered_tokens + recomputations * part.recomputed_tokens for part in parts)
            num_bytes = runs.count * (slots + tokens * expert.size) * self._hidden_state_bytes
            yield from expert.all_gather(num_bytes, is_awaited=True)
        for runs in self._runs():
            yield from self._key_traffic(runs)
        if self._is_pipelined:
            yield from self._pipeline_traffic(stage)

    def _key_traffic(self, runs: _Runs) -> Iterator[Traffic]:
        """Yield the traffic of keys and values along context, for one kind of attention."""
        context = self._device_group(("context",))
        if context.size == 1:
            return
        attention, has_backward, length = runs.block.attention, runs.has_backward, self._workload.length
        features = attention.traffic(length).context_features // self._degrees["tensor"]
        tokens = runs.count * self._layout.rows_per_shard * length
        if self._network.exchange == "gather":
            # Keys are cast after the gather: they are rotated in float32.
            keys = tokens * features * (FLOAT32 + self._value_bytes)
            num_gathers = 1 + has_backward * (self._has_remat + runs.runs_forward_twice)
            yield from context.all_gather(num_gathers * keys, is_awaited=True)
            yield from context.reduce_scatter(keys * has_backward)
            return
        hops = count_ring_hops(attention.ring(length, context.size))
        # A recomputed layer shares the keys of the ring with its backward pass. The gradients return to the keys'
        # shard.
        passes = hops * self._value_bytes
        if has_backward:
            passes += hops * (self._value_bytes + FLOAT32) + min(hops, 1) * self._value_bytes
            passes += hops * self._value_bytes * runs.runs_forward_twice
        network: Network = "dcn" if context.dcn > 1 else "ici"
        yield Traffic(network, context.axes, 2 * tokens // context.size * features * passes, is_exposed=False)

    def _pipeline_traffic(self, stage: DeviceGroup) -> Iterator[Traffic]:
        """Yield the traffic of a pipeline, as observed in programs that XLA compiled."""
        if self._alternates:
            yield from self._alternating_traffic(stage)
            return
        network: Network = "dcn" if stage.dcn > 1 else "ici"
        hidden, has_backward = self._hidden_state_bytes, self._network.has_backward
        tapped = self._workload.tapped_layers * hidden
        passes = self._ticks * (1 + has_backward)
        # The stages send their hidden states along a ring. The first stage reads the next microbatch instead.
        num_bytes = passes * (hidden + tapped) * (stage.size + 1) // stage.size
        yield Traffic(network, stage.axes, num_bytes, is_exposed=True)
        yield from stage.all_reduce(passes * hidden + self._ticks * tapped, is_awaited=True)
        if self._repeats > 1:
            yield from self._regrouping_traffic(stage)
        if not has_backward:
            return
        microbatches = self._layout.accumulation * self._layout.microbatches
        yield from stage.all_gather(microbatches * hidden, is_awaited=True)
        if self._network.prediction:  # stages share the modules: they gather the gradient of the embedded tokens
            yield from stage.all_gather(microbatches * self._hidden_state_bytes, is_awaited=True)
            modules = [leaf for leaf in self._network.tensors if leaf.is_stacked and not leaf.is_layered]
            params = sum(leaf.shard_size(self._ways) for leaf in modules if leaf.is_matrix)
            yield from stage.all_reduce(self._layout.accumulation * FLOAT32 * params, is_awaited=True)
        # Every stage embeds tokens, so that the table's gradients are reduced over stages too. Every tick gathers the
        # hidden states of all ticks.
        split = self._device_group(RULES["embed"])
        table = FLOAT32 * self._network.embedding.tensor.size * self._network.table.is_trainable
        yield from stage.all_reduce(table / split.size / self._degrees["tensor"], is_awaited=True)
        yield from split.all_gather(self._ticks**2 / self._layout.accumulation * split.size * (hidden + tapped))

    def _alternating_traffic(self, stage: DeviceGroup) -> Iterator[Traffic]:
        """Yield the traffic of stages that alternate between both passes: hidden states, and gradients of the LM head.

        All stages run the LM head on the last stage's output, and embed the first stage's gradient. Each stage has some
        columns of the logits: the gradients of their inputs are reduced, those of the matrix are gathered.
        """
        network: Network = "dcn" if stage.dcn > 1 else "ici"
        hidden, has_backward = self._hidden_state_bytes, self._network.has_backward
        tapped = self._workload.tapped_layers * hidden
        passes = self._ticks * (1 + has_backward) + self._lm_head_runs / stage.size
        yield Traffic(network, stage.axes, round(passes * (hidden + tapped)), is_exposed=True)
        is_split = self._workload.split_vocabulary(self._degrees) * self._degrees["tensor"] < self._network.vocab_size
        lm_head_reduces = self._lm_head_runs * (1 + (has_backward and is_split))
        sums = (self._ticks + lm_head_reduces) * hidden + self._lm_head_runs * tapped
        yield from stage.all_reduce(sums, is_awaited=True)
        head = self._network.head_matrix
        size, times = head.shard_size(self._ways), self._layout.accumulation
        if is_split:
            yield from stage.all_gather(times * FLOAT32 * size * head.is_trainable, is_awaited=True)

    def _regrouping_traffic(self, stage: DeviceGroup) -> Iterator[Traffic]:
        """Yield the parameter traffic of a circular schedule, in float32: stages store adjacent layers.

        Each stage gets its groups of layers once in an accumulation step, and returns their gradients.
        """
        storage = count_shards(self._degrees, merge_rules(self._workload.rules.overrides()))
        params = sum(leaf.shard_size(storage) for leaf in self._network.tensors if leaf.is_layered)
        passes = 1 + self._network.has_backward
        yield from stage.exchange(passes * self._layout.accumulation * FLOAT32 * params)


def sum_by_axes(traffic: tuple[Traffic, ...]) -> Mapping[tuple[Network, tuple[Axis, ...]], int]:
    """Return the bytes over each network along each set of axes."""
    sums: dict[tuple[Network, tuple[Axis, ...]], int] = {}
    for term in traffic:
        sums[term.network, term.axes] = sums.get((term.network, term.axes), 0) + term.num_bytes
    return sums
