"""The part of a spec that determines memory, FLOPs and traffic of a train step, as a hashable value."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from trainingjob_api.base import Axis
from trainingjob_api.loss_chunks import count_loss_chunks
from trainingjob_api.network.block import Block
from trainingjob_api.network.freeze import freeze
from trainingjob_api.network.network import Network
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.network.tensor import Storage, Tensor
from trainingjob_api.optim import FLOAT_BYTES, Slot, count_whole_matrices, list_slots
from trainingjob_api.optimizer_memory import choose_optimizer_memory, is_offloaded
from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_api.sharding import ShardCounts, shards_of_dim
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.optimizer import Muon
from trainingjob_api.spec.parallelism import Pipeline, Rules
from trainingjob_api.spec.precision import Precision
from trainingjob_api.teacher import describe_teacher
from trainingjob_api.world import Layout

CPU = "cpu"
FLOAT32 = 4


@dataclass(frozen=True)
class Reference:
    """A second model of a step, which runs forward only, before the trained one.

    For preference optimization it is the model as it was at the start, for distillation the teacher.
    """

    workload: "Workload"
    """The forward pass, with all tensors frozen."""
    tensors: tuple[Tensor, ...]
    """The tensors that devices hold for it. It shares those that training does not change."""
    is_saved: bool
    """Whether the tensors are part of the state. Otherwise each start reads them from their source."""
    gives_logits: bool
    """Whether the loss reads its logits, and not only its log-probabilities."""


@dataclass(frozen=True)
class Workload:
    """The work of a train step on one sequence."""

    network: Network
    length: int
    """Tokens per sequence."""
    precision: Precision
    slots: tuple[Slot, ...]
    """State slots of the optimizer."""
    memory: Memory
    rules: Rules
    """Sharding rules that override the built-in ones."""
    pipeline: Pipeline
    newton_schulz_steps: int
    """Iterations that orthogonalize an update; 0: the optimizer has none."""
    has_documents: bool
    """Whether a sequence holds several documents, which attend only to themselves."""
    is_cpu: bool
    """Whether XLA's CPU compiler builds the program. It has no reduce-scatter."""
    repeats_chunks: bool = False
    """Whether the backward pass computes logits in chunks again: the gradients of tokens depend on the whole loss."""
    slots_on_host: bool = False
    """Whether slots of matrices are in host memory between updates."""
    stored_per_token: int = 0
    """Stored probabilities of a teacher for each token. 0: the loss reads none."""
    reference: Reference | None = None
    """None: the objective has none."""
    tapped_layers: int = 0
    """Layers whose outputs the loss compares with those of the other model."""

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of the state's parameters, with those of its reference."""
        tensors = self.network.tensors
        return (*tensors, *self.reference.tensors) if self.reference and self.reference.is_saved else tensors

    @property
    def models(self) -> tuple["Workload", ...]:
        """Return the work of each model that a step runs: the trained one, then its reference."""
        return (self, self.reference.workload) if self.reference else (self,)

    def shard(self, degrees: Mapping[Axis, int]) -> Shard:
        """Return the share of a device in a layer."""
        return Shard(self.length, self.compute_bytes, degrees, self.has_documents)

    def schedule(self, layout: Layout) -> PipelineSchedule:
        """Return the pipeline schedule of an accumulation step."""
        return self.pipeline.plan(layout.microbatches, layout.num_stages)

    def forward_runs(self, block: Block, stages: int) -> int:
        """Return how often a stage runs a layer forward for each backward pass, beside what `memory.remat` repeats."""
        return 2 if self.pipeline.alternates(stages) and not block.is_forward_only else 1

    def split_vocabulary(self, degrees: Mapping[Axis, int]) -> int:
        """Return the columns of the logits of a device for each of its runs of the LM head."""
        shard, columns = self.shard(degrees), self.network.vocab_size
        full_columns = shard.split(columns, "vocab")
        return (
            min(full_columns, shard.split(columns, "vocab_of_stages"))
            if self.pipeline.alternates(degrees["stage"])
            else full_columns
        )

    @property
    def compute_bytes(self) -> int:
        """Return the bytes of a value in the compute format."""
        return FLOAT_BYTES[self.precision.compute]

    def list_slots(self, tensor: Tensor) -> list[tuple[Tensor, int]]:
        """Return the optimizer's state for a trained tensor: tensors, and the bytes of one value of each."""
        return [(slot.shape_like(tensor), slot.num_bytes) for slot in self.slots if slot.is_kept_for(tensor)]

    def list_offloaded_slots(self, tensor: Tensor) -> list[tuple[Tensor, int]]:
        """Return those of `list_slots` that are in host memory."""
        if not self.slots_on_host:
            return []
        slots = [slot for slot in self.slots if slot.is_kept_for(tensor) and is_offloaded(slot, tensor)]
        return [(slot.shape_like(tensor), slot.num_bytes) for slot in slots]

    def count_whole_matrices(self, tensor: Tensor, ways: ShardCounts) -> int:
        """Return how many whole matrices of a tensor each device orthogonalizes in a step; 0: it has parts of all."""
        num_layers, *experts = tensor.shape[: tensor.num_stack_dims]
        # A streamed update has one layer of each shard at a time.
        at_once = shards_of_dim(tensor.axes[0], num_layers, ways) if self.list_offloaded_slots(tensor) else num_layers
        each = count_whole_matrices(at_once * math.prod(experts), tensor.size // tensor.shard_size(ways))
        return each * num_layers // at_once

    @property
    def gradient_bytes(self) -> int:
        """Return the bytes of a gradient that is summed over accumulation steps."""
        return FLOAT_BYTES[self.precision.gradients]

    @property
    def logit_bytes(self) -> int:
        """Return the bytes of a logit."""
        return FLOAT_BYTES[self.precision.logits]

    @property
    def param_bytes(self) -> int:
        """Return the bytes of a stored parameter in the format of the spec."""
        return FLOAT_BYTES[self.precision.params]

    def stored_bytes(self, tensor: Tensor) -> int:
        """Return the bytes of a stored number of a tensor."""
        return {Storage.PARAMS: self.param_bytes, Storage.INT8: 1, Storage.FLOAT32: FLOAT32}[tensor.storage]


def count_chunks_of_loss(workload: Workload, degrees: Mapping[Axis, int], sequences: int) -> int:
    """Return the number of chunks in which a device computes the logits of a microbatch; 1: they are whole."""
    tokens = sequences * (workload.length // degrees["context"])
    return count_loss_chunks(workload.memory, tokens, workload.split_vocabulary(degrees))


def describe_workload(spec: TrainingJobSpec) -> Workload:
    """Return the workload of a spec."""
    is_cpu = spec.slices.accelerator == CPU
    length, rules = spec.training.sequence_length, spec.parallelism.rules
    network = resolve_network(spec).on(
        spec.slices.accelerator,
        spec.parallelism.context.exchange,
        shards_stream=spec.parallelism.shard_stream_over_tensor,
    )
    slots = list_slots(spec.optimizer, spec.precision)
    pipeline, optimizer = spec.parallelism.pipeline, spec.optimizer.resolved()
    steps = optimizer.newton_schulz_steps if isinstance(optimizer, Muon) else 0
    isolates = spec.data.isolates_documents
    workload = Workload(
        network,
        length,
        spec.precision,
        slots,
        spec.memory,
        rules,
        pipeline,
        steps,
        isolates,
        is_cpu,
        slots_on_host=choose_optimizer_memory(spec).name == "host",
    )
    stored = spec.objective.probabilities if spec.objective else None
    if stored:
        return replace(workload, stored_per_token=stored.per_token)
    teacher = describe_teacher(spec)
    if teacher:
        features = spec.objective.features if spec.objective else None
        tapped = len(features.layers) if features else 0
        return _add_teacher(*(replace(model, tapped_layers=tapped) for model in (workload, describe_workload(teacher))))
    return workload if spec.sequences_per_example == 1 else _add_reference(workload)


def describe_evaluation(spec: TrainingJobSpec) -> Workload:
    """Return the workload of an evaluation: that of a training step without its backward pass."""
    return _freeze(describe_workload(spec))


@lru_cache(maxsize=64)
def _freeze(workload: Workload) -> Workload:
    return _run_forward(replace(workload, network=freeze(workload.network, ())))


@lru_cache(maxsize=64)
def _add_reference(workload: Workload) -> Workload:
    """Return the workload of a loss of pairs, with the reference that it is measured against."""
    forward = _freeze(workload)
    trained = tuple(tensor for tensor in workload.network.tensors if tensor.is_trainable)
    reference = Reference(forward, trained, is_saved=True, gives_logits=False)
    return replace(workload, repeats_chunks=True, reference=reference)


@lru_cache(maxsize=64)
def _add_teacher(workload: Workload, teacher: Workload) -> Workload:
    """Return the workload of a distillation."""
    reference = Reference(_run_forward(teacher), teacher.network.tensors, is_saved=False, gives_logits=True)
    return replace(workload, reference=reference)


def _run_forward(workload: Workload) -> Workload:
    """Return the workload of a frozen model without its backward pass."""
    pipeline = Pipeline(microbatches=workload.pipeline.microbatches) if workload.pipeline.groups == 1 else None
    return replace(workload, slots=(), pipeline=pipeline or workload.pipeline, newton_schulz_steps=0)
