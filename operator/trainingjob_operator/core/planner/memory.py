"""Memory of a device, from the spec alone.

Assumptions about this project's trainer: gradients are summed in the format of the spec. The optimizer's state slots
come from `trainingjob_api.optim`. Frozen parameters have neither, nor have those of a reference. The parameters of one
layer are gathered at a time. The output projection is gathered for the logits. The embedding table stays gathered while
more accumulation steps follow.

Memory peaks at one of two points: at the logits, or in the first layer of the backward pass. Both come on top of the
residuals of all layers. A test compares these numbers with XLA's memory analysis of compiled steps, see
tests/golden/compiler.json.

The parts of a layer state the bytes that they save, see `trainingjob_api.network`.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.decoding import count_cache_bytes, find_decoding_shape
from trainingjob_api.loss_chunks import MAX_LOGITS_BYTES
from trainingjob_api.network.attention_kernel import TPU
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.tensor import Gradients, Tensor
from trainingjob_api.optim import FLOAT_BYTES
from trainingjob_api.sharding import (
    RULES,
    ShardCounts,
    count_shards,
    find_zero1_dim,
    merge_rules,
    shards_of_dim,
)
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import Memory
from trainingjob_api.teacher import count_batch_bytes
from trainingjob_api.world import Layout
from trainingjob_operator.core.planner.mesh import combine_degrees
from trainingjob_operator.core.planner.plan import MemoryEstimate, SizePlan
from trainingjob_operator.core.planner.workload import FLOAT32, Workload, describe_workload

PROCESS_BYTES = 2**30
"""Memory of a host's processes beside what they offload, at least."""
USABLE_MEMORY_SHARE = 0.92
"""Usable share of a device's memory. The runtime, compiled code and fragmentation take the rest."""


PIPELINE_RESIDUAL_TENTHS = 12
"""Memory of a pipeline stage, in tenths of the residuals of its layers. The two extra tenths are copies in the loop
over pipeline ticks, as measured on TPU."""
GRADIENT_PIECES_IN_FLIGHT = 4
"""Pieces of the output projection's gradient that are in flight during its reduce-scatter over devices."""

CHUNKED_HIDDEN_STATES = 4
"""Copies of the hidden states beside the chunks of the logits, with their gradients."""
STREAMED_COPIES = 2
"""Copies on a device of optimizer state that comes from the host: before and after its update."""
ALTERNATING_TAPS = 4
"""Arrays of each tapped layer on a stage that alternates between both passes: the outputs of a microbatch that goes
forward and of another one that goes backward, and the gradients of both."""
MAX_SEQUENCES = 2**31


@dataclass(frozen=True)
class PeakPoint:
    """Temporary bytes at one of the two points where memory peaks: a fixed part, and a part per sequence."""

    fixed_bytes: int
    per_sequence: int

    def add(self, more: "PeakPoint") -> "PeakPoint":
        """Return a point at which both are allocated."""
        return PeakPoint(self.fixed_bytes + more.fixed_bytes, self.per_sequence + more.per_sequence)


@dataclass(frozen=True)
class TeacherMemory:
    """What the teacher of a distillation adds to the memory of one device, beside its parameters."""

    hidden_per_sequence: int = 0
    """Hidden states after its last layer and its tapped layers, or stored probabilities, which wait for the loss."""
    whole_loss: PeakPoint = PeakPoint(0, 0)
    chunked_loss: PeakPoint = PeakPoint(0, 0)
    layers: tuple[PeakPoint, ...] = ()
    """Its forward pass, in each kind of its layers."""


@dataclass(frozen=True)
class DeviceMemory:
    """Memory of one device, as a function of its sequences per microbatch."""

    params: int
    gradients: int
    optimizer: int
    residuals_per_sequence: int
    """Residuals that all layers save for the backward pass, per sequence."""
    kept_inputs_per_sequence: int
    """Inputs of a stage that wait for their backward pass, per sequence. 0: a stage keeps residuals alone."""
    teacher_per_sequence: int
    """Hidden states of the teacher that all microbatches keep, per sequence. 0: `residuals_per_sequence` has them."""
    offloaded_per_sequence: int
    """Residuals that all layers save in the memory of the host, per sequence."""
    gathered_embedding: int
    """The gathered embedding table. It stays allocated while more accumulation steps follow, if `data` has degree 1 or
    the platform is `cpu`."""
    gathered_layers: Mapping[Gradients, int]
    """The gathered matrices of all layers of a stage, by their gradients. Only one layer is gathered at a time."""
    gathered_modules: int
    """The gathered matrices of all modules of multi-token prediction."""
    gathered_lm_head: int
    """The gathered output projection."""
    logits_per_sequence: int
    peak_points: tuple[PeakPoint, ...]
    """The loss with whole logits, then the layers of each block."""
    chunked_loss: PeakPoint
    """The loss with logits in chunks, which replaces the first of the peak points."""
    max_whole_sequences: int
    """Sequences per microbatch up to which the logits are whole."""
    offloaded_slots: int = 0
    """Optimizer state in host memory, which `optimizer` does not count."""
    update_bytes: int = 0
    """Bytes of that state on the device during the update, when activations are free: the largest piece."""
    tick_gradients: int = 0
    """Sums of gradients over the ticks of an accumulation step, in float32, beside the sums over all steps."""

    def estimate(
        self,
        sequences: int,
        saved_microbatches: int,
        *,
        microbatches: int = 1,
        keeps_embedding: bool = True,
        accumulates: bool = True,
    ) -> MemoryEstimate:
        """Return the bytes for `microbatches` of `sequences`, of which `saved_microbatches` are held at once.

        `accumulates`: there are several accumulation steps.
        """
        activations = sequences * self._saved_per_sequence(saved_microbatches, microbatches)
        peak = max([point.fixed_bytes + sequences * point.per_sequence for point in self._points(sequences)])
        peak += self.tick_gradients * accumulates
        return MemoryEstimate(
            params=self.params,
            gradients=self.gradients,
            optimizer=self.optimizer,
            activations=activations,
            host=saved_microbatches * sequences * self.offloaded_per_sequence + self.offloaded_slots,
            temporaries=max(self.gathered_embedding * keeps_embedding + peak, self.update_bytes - activations),
        )

    def _points(self, sequences: int) -> tuple[PeakPoint, ...]:
        if sequences <= self.max_whole_sequences:
            return self.peak_points
        return self.chunked_loss, *self.peak_points[1:]

    def _saved_per_sequence(self, saved_microbatches: int, microbatches: int) -> int:
        saved = saved_microbatches * self.residuals_per_sequence + microbatches * self.teacher_per_sequence
        return saved + self.kept_inputs_per_sequence

    def max_sequences(
        self, memory_bytes: int, saved_microbatches: int, *, microbatches: int = 1, keeps_table: bool = True
    ) -> int:
        """Return the most sequences per microbatch that fit a device with this memory. 0: not even one fits."""
        state = self.params + self.gradients + self.optimizer
        free = int(memory_bytes * USABLE_MEMORY_SHARE) - state - self.tick_gradients
        if free < self.update_bytes:
            return 0
        free -= self.gathered_embedding * keeps_table

        def fit(points: tuple[PeakPoint, ...]) -> int:
            saved = self._saved_per_sequence(saved_microbatches, microbatches)
            return min([(free - point.fixed_bytes) // (saved + point.per_sequence) for point in points])

        in_chunks = fit((self.chunked_loss, *self.peak_points[1:]))
        unchunked = min(fit(self.peak_points), self.max_whole_sequences)
        return max(in_chunks if in_chunks > self.max_whole_sequences else unchunked, 0)


def estimate_device_memory(spec: TrainingJobSpec, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return the memory of a device of a mesh."""
    # Otherwise `data` splits only the batch.
    data = degrees["data"] if spec.parallelism.shard_optimizer_over_data else 1
    return estimate_workload_memory(describe_workload(spec), {**degrees, "data": data})


def count_offloaded_slots(spec: TrainingJobSpec, layout: Layout) -> int:
    """Return the bytes of the optimizer state that a device of a layout has in host memory."""
    return estimate_device_memory(spec, combine_degrees(layout.ici, layout.dcn)).offloaded_slots


def estimate_workload_memory(workload: Workload, degrees: Mapping[Axis, int]) -> DeviceMemory:
    """Return the memory of a device for a workload. The degree of `data` is the one that shards the optimizer state."""
    return _estimate_memory(workload, tuple(degrees.items()))


@lru_cache(maxsize=256)  # the sizes of an elastic job mostly share these degrees
def _estimate_memory(program: Workload, axes: tuple[tuple[Axis, int], ...]) -> DeviceMemory:
    degrees = dict(axes)
    network, leaves = program.network, program.network.tensors
    trained = [leaf for leaf in leaves if leaf.is_trainable]
    shard = program.shard(degrees)
    ways, storage_ways = count_shards(degrees), count_shards(degrees, merge_rules(program.rules.overrides()))
    params = sum([leaf.shard_size(storage_ways) * program.stored_bytes(leaf) for leaf in leaves])
    if program.reference:
        second = program.reference.workload
        params += sum([leaf.shard_size(storage_ways) * second.stored_bytes(leaf) for leaf in program.reference.tensors])
    trained_params = sum([leaf.shard_size(storage_ways) for leaf in trained])
    table = program.compute_bytes * network.embedding.tensor.size
    alternates = program.pipeline.alternates(degrees["stage"])
    columns = program.split_vocabulary(degrees)
    head = program.compute_bytes * network.width * columns if alternates else table // degrees["tensor"]
    shards = math.prod(degrees[axis] for axis in RULES["embed"])
    head_gradient = FLOAT32 * head // program.compute_bytes if network.head_matrix.is_trainable else 0
    gradient_pieces = head_gradient * min(shards, GRADIENT_PIECES_IN_FLIGHT) // shards if shards > 1 else 0
    if program.is_cpu:  # XLA for CPUs all-reduces whole gradients, and gathers the head once a step
        gradient_pieces = 2 * head_gradient
        gradient_pieces += FLOAT32 * table // program.compute_bytes if network.table.is_trainable else 0
    # Where `data` shards the optimizer state, new parameters are gathered beside the old ones, as compiled steps show.
    gathered = trained_params * FLOAT32 if degrees["data"] > 1 else 0
    # A pipeline accumulates gradients in float32 over its ticks. It holds a float32 copy of the parameters beside them.
    if degrees["stage"] > 1 and program.param_bytes < FLOAT32:
        gathered += trained_params * FLOAT32
    if program.pipeline.groups > 1 and degrees["stage"] > 1:  # the groups of a stage beside the layers that it stores
        stacked = sum([leaf.shard_size(storage_ways) for leaf in leaves if leaf.is_layered])
        gathered += 2 * stacked * FLOAT32
    length = program.length // degrees["context"]
    saved = program.memory.saved
    layers_of = [(block, count * length, degrees["stage"]) for block, count in network.layer_blocks.items()]
    # Stages that alternate all run the modules of further tokens on the microbatch that leaves. Others share them.
    shares = 1 if alternates else degrees["stage"]
    modules_of = [(block, count * length, shares) for block, count in network.module_blocks.items()]
    residuals, module_residuals = (
        sum([count * block.saved_bytes(shard, saved) // parts for block, count, parts in found])
        for found in (layers_of, modules_of)
    )
    every = [*layers_of, *modules_of]
    offloaded = sum([count * block.offloaded_bytes(shard, saved) // parts for block, count, parts in every])
    read_out = PeakPoint(0, 0)
    if alternates:  # the modules have run backward before a stage computes its layers again
        read_out = PeakPoint(0, max(module_residuals - residuals, 0))
    else:
        residuals += module_residuals
    logits = length * columns * _logit_bytes(program)
    fixed_chunk, chunk = _chunk_bytes(program, logits, length * columns)
    teacher = _estimate_teacher(program, axes)
    # Their gradients take the place of the values, as compiled steps show.
    copies = ALTERNATING_TAPS if alternates else 1
    tapped = copies * program.tapped_layers * length * network.width * program.compute_bytes
    pipelined = PIPELINE_RESIDUAL_TENTHS if degrees["stage"] > 1 and not alternates else 10
    kept_inputs = program.pipeline.plan(1, degrees["stage"]).saved_inputs * length * network.width
    slots, offloaded_slots = (
        {
            leaf.name: sum(
                [state.data_sharded_size(storage_ways, degrees["data"]) * num_bytes for state, num_bytes in found(leaf)]
            )
            for leaf in trained
        }
        for found in (program.list_slots, program.list_offloaded_slots)
    )
    return DeviceMemory(
        params=params,
        gradients=trained_params * program.gradient_bytes,
        tick_gradients=FLOAT32 * trained_params if alternates else 0,
        optimizer=sum(slots.values()) - sum(offloaded_slots.values()),
        offloaded_slots=sum(offloaded_slots.values()),
        update_bytes=STREAMED_COPIES * _largest_piece(trained, offloaded_slots, storage_ways, degrees["data"]),
        residuals_per_sequence=residuals * pipelined // 10
        + tapped
        + (0 if alternates else teacher.hidden_per_sequence),
        teacher_per_sequence=teacher.hidden_per_sequence if alternates else 0,
        kept_inputs_per_sequence=kept_inputs * program.compute_bytes,
        offloaded_per_sequence=offloaded,
        gathered_embedding=table,
        gathered_layers={
            gradients: sum(
                [leaf.gathered_size(ways) for leaf in leaves if leaf.is_layered and leaf.gradients is gradients]
            )
            * program.compute_bytes
            // degrees["stage"]
            for gradients in Gradients
        },
        gathered_modules=program.compute_bytes
        * sum([leaf.gathered_size(ways) for leaf in leaves if leaf.is_stacked and not leaf.is_layered]),
        gathered_lm_head=head,
        logits_per_sequence=logits,
        peak_points=(
            # Its gradient is reduced in float32, piece by piece.
            PeakPoint(gathered + head + gradient_pieces, logits).add(teacher.whole_loss).add(read_out),
            # Values and gradients of one layer's gathered parameters, and of its activations.
            *[
                PeakPoint(
                    gathered + program.compute_bytes * (block.gathered_size(ways) + block.gathered_gradients(ways)),
                    length * block.backward_bytes(shard, saved),
                )
                for block in network.blocks
            ],
            *teacher.layers,
        ),
        # A device sums the gradient of its columns of the LM head, and holds hidden states and their gradients.
        chunked_loss=PeakPoint(
            gathered + head + head_gradient + fixed_chunk,
            chunk + CHUNKED_HIDDEN_STATES * length * network.width * program.compute_bytes,
        )
        .add(teacher.chunked_loss)
        .add(read_out),
        max_whole_sequences=_max_whole_sequences(program.memory, length * columns),
    )


def _estimate_teacher(program: Workload, axes: tuple[tuple[Axis, int], ...]) -> TeacherMemory:
    """Return what a teacher adds to the memory of a device; nothing without one.

    Its logits are as many as those of the student, and its embedding table is gathered before its first layer. Stored
    probabilities wait for the loss, too, and may be spread over the vocabulary there.
    """
    if program.stored_per_token:
        degrees = dict(axes)
        length = program.length // degrees["context"]
        logits = FLOAT32 * length * program.split_vocabulary(degrees)
        fixed_chunk, chunk = _chunk_bytes(program, logits, logits // FLOAT32)
        waiting = length * count_batch_bytes(program.stored_per_token)
        return TeacherMemory(waiting, PeakPoint(0, logits), PeakPoint(fixed_chunk, chunk))
    if program.reference is None or not program.reference.gives_logits:
        return TeacherMemory()
    second = program.reference.workload
    device, degrees = _estimate_memory(second, axes), dict(axes)
    hidden = second.length // degrees["context"] * second.network.width * second.compute_bytes
    hidden *= 1 + second.tapped_layers
    table = PeakPoint(device.gathered_embedding, 0)
    return TeacherMemory(
        hidden, device.peak_points[0], device.chunked_loss, tuple(point.add(table) for point in device.peak_points[1:])
    )


def _largest_piece(tensors: Sequence[Tensor], slots: Mapping[str, int], ways: ShardCounts, data: int) -> int:
    """Return the most bytes of slots that an update brings to a device at once: those of a layer, or of a tensor."""
    layers: dict[int, int] = defaultdict(int)
    tensor_bytes = [0]
    for tensor in tensors:
        if tensor.is_stacked:
            shards = shards_of_dim(tensor.axes[0], tensor.shape[0], ways)
            if data > 1 and find_zero1_dim(tensor.axes, tensor.shape, ways, data) == 0:
                shards *= data
            steps = tensor.shape[0] // shards
            layers[steps] += slots[tensor.name] // steps
        else:
            tensor_bytes.append(slots[tensor.name])
    return max([*tensor_bytes, *layers.values()])


def _chunk_bytes(program: Workload, logits: int, numbers: int) -> tuple[int, int]:
    """Return the bytes of a chunk of logits: a fixed part, and a part per sequence.

    `logits` and `numbers`: the bytes and the number of the logits of one sequence.
    """
    if program.memory.loss_chunks:
        return 0, logits // program.memory.loss_chunks
    return logits * MAX_LOGITS_BYTES // (FLOAT32 * numbers), 0


def _max_whole_sequences(memory: Memory, numbers: int) -> int:
    """Return the sequences up to which logits are whole, given the number of logits per sequence."""
    if memory.loss_chunks == 1:
        return MAX_SEQUENCES
    return 0 if memory.loss_chunks else MAX_LOGITS_BYTES // (FLOAT32 * numbers)


def _logit_bytes(program: Workload) -> int:
    """Return the bytes of a logit, and of its gradient in the format of the matmuls.

    XLA for TPUs fuses the gradient into its matmul if there is one alone: that with a frozen matrix.
    """
    number = 2 * FLOAT32 if program.is_cpu else program.logit_bytes
    is_fused = program.network.accelerator.startswith(TPU) and not program.network.head_matrix.is_trainable
    return number + (0 if is_fused else program.compute_bytes)


def count_sample_bytes(spec: TrainingJobSpec, size: SizePlan) -> int:
    """Return the bytes of the cache of text samples on one device; 0 without samples, and at an invalid size."""
    decoding = find_decoding_shape(spec)
    if decoding is None or size.layout is None:
        return 0
    degrees = combine_degrees(size.layout.ici, size.layout.dcn)
    shard = Shard(decoding.length, FLOAT_BYTES[spec.precision.compute], degrees)
    return count_cache_bytes(resolve(spec.model), decoding, shard)
