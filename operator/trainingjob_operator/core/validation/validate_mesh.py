"""Rules about slices and the mesh that do not depend on the number of slices."""

from collections.abc import Iterator

from trainingjob_api.base import Axis
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.names import nearest_names
from trainingjob_operator.core.planner import divisibility
from trainingjob_operator.core.planner.choice import EXPLICIT
from trainingjob_operator.core.planner.divisibility import (
    DCN,
    HEADS,
    ICI,
    LAYERS,
    SEQUENCE,
    WIDTH,
    Mesh,
    check_divisible,
)
from trainingjob_operator.core.planner.hardware import CPU, CPU_MAX, Hardware, format_dims
from trainingjob_operator.core.planner.mesh import INFERRED, check_degree_form, check_degree_product, combine_degrees
from trainingjob_operator.core.planner.problem_messages import has_no_effect, join_words, quote_field
from trainingjob_operator.core.planner.size_planner import check_microbatches, describe_slice
from trainingjob_operator.core.planner.strategy import AUTO, list_explicit_fields
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.rule import HardwareRule, Rule

MAX_HOSTS = 4096
"""Hosts of a job at its largest size. The status lists each of them."""
_COUNT_OR_RANGE = "Set `count` for a fixed size, or both `min` and `max` for an elastic size."


def check_accelerator(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The accelerator must be in the operator's hardware table."""
    accelerator = spec.slices.accelerator
    if accelerator not in hardware.accelerators:
        message = f"{accelerator} must be an accelerator of the operator's hardware table."
        yield Problem(
            "spec.slices.accelerator", accelerator, message, nearest_names(accelerator, hardware.accelerators)
        )


def check_topology(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The accelerator must have slices of the topology."""
    accelerator, topology = spec.slices.accelerator, spec.slices.topology
    if accelerator not in hardware.accelerators or hardware.find_shape(accelerator, topology):
        return
    allowed = (
        f"HOSTSxDEVICES_PER_HOST, from 1x1 to {format_dims(CPU_MAX)}"
        if accelerator == CPU
        else f"a topology of {accelerator}"
    )
    nearest = tuple(hardware.nearest_topologies(accelerator, topology))
    yield Problem("spec.slices.topology", topology, f"{topology} must be {allowed}.", nearest)


def check_slice_counts(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job must set either `count`, or both `min` and `max`, and `min` must be at most `max`."""
    slices = spec.slices
    bounds = {name: getattr(slices, name) for name in ("min", "max") if getattr(slices, name) is not None}
    if slices.count is not None and bounds:
        message = f"must not be set together with {join_words(f'`{name}`' for name in bounds)}. {_COUNT_OR_RANGE}"
        yield Problem("spec.slices.count", slices.count, message)
    elif slices.count is None and not bounds:
        message = f"must have a number of slices. {_COUNT_OR_RANGE}"
        yield Problem("spec.slices", None, message, ("count: 1", "min: 1 and max: 2"))
    elif slices.count is None and len(bounds) == 1:
        (name, value), missing = *bounds.items(), {"min": "max", "max": "min"}[next(iter(bounds))]
        message = f"must be set together with {quote_field(f'spec.slices.{name}', value)}. {_COUNT_OR_RANGE}"
        yield Problem(f"spec.slices.{missing}", None, message, (str(value),))
    elif slices.min is not None and slices.max is not None and slices.min > slices.max:
        message = f"{slices.min} must be at most {quote_field('spec.slices.max', slices.max)}."
        yield Problem("spec.slices.min", slices.min, message, (str(slices.max),))


def check_allowed_range(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`allowed` must contain `min`, `max` and only sizes between them."""
    slices, path = spec.slices, "spec.slices.allowed"
    if slices.allowed is None:
        return
    if slices.count is not None:
        message = "must not be set together with `count`. Set `min` and `max` for an elastic size."
        yield Problem(path, list(slices.allowed), message)
        return
    if slices.min is None or slices.max is None or slices.min > slices.max:
        return  # another rule reports this
    legal = sorted({slices.min, slices.max, *(n for n in slices.allowed if slices.min <= n <= slices.max)})
    if sorted(set(slices.allowed)) != legal:
        low, high = quote_field("spec.slices.min", slices.min), quote_field("spec.slices.max", slices.max)
        message = f"{list(slices.allowed)} must contain {low}, {high} and otherwise only numbers between them."
        yield Problem(path, list(slices.allowed), message, (str(legal),))


def check_host_limit(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The largest size must not have more hosts than the status can list."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    if shape is None or spec.slices.max_slices * shape.num_hosts <= MAX_HOSTS:
        return
    field = "count" if spec.slices.count else "max"
    max_slices = MAX_HOSTS // shape.num_hosts
    message = (
        f"{pluralize(spec.slices.max_slices, 'slice')} of {pluralize(shape.num_hosts, 'host')} are "
        f"{pluralize(spec.slices.max_slices * shape.num_hosts, 'host')}. A job must have at most {MAX_HOSTS:,} hosts."
    )
    yield Problem(f"spec.slices.{field}", spec.slices.max_slices, message, (str(max_slices),))


def check_ici(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The ICI degrees must multiply to the devices of one slice."""
    yield from check_degree_form(ICI, spec.parallelism.ici)
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    if shape:
        yield from check_degree_product(ICI, spec.parallelism.ici, shape.num_devices, describe_slice(shape))


def check_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The DCN degrees must be at least 1, or -1 for at most one axis. They must multiply to the number of slices."""
    yield from check_degree_form(DCN, spec.parallelism.dcn)


def check_layers(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The number of pipeline stages must divide `model.numLayers`."""
    yield from divisibility.check_stages(spec, _written_mesh(spec), is_filled=False)


def check_width(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The product of the `fsdp`, `expert` and `context` degrees must divide `model.embedDim`."""
    yield from divisibility.check_model_width(spec, _written_mesh(spec), is_filled=False)


def check_rules(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The mesh must divide each dimension that `parallelism.rules` shards."""
    yield from divisibility.check_sharding_rules(spec, _written_mesh(spec))


def check_sequence(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The `context` degree must divide `training.sequenceLength`, and twice the degree with a ring."""
    yield from divisibility.check_sequence(spec, _written_mesh(spec), is_filled=False)


def check_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The `tensor` degree must divide `model.numHeads`, `model.numKvHeads` and `model.mlpDim`."""
    yield from check_divisible(spec, HEADS, _written_mesh(spec), is_filled=False)


def check_experts(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The `expert` degree must divide `model.experts.count`, and be 1 without experts."""
    yield from divisibility.check_experts(spec, _written_mesh(spec), is_filled=False)


def check_groups(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The `context` degree must not split a routing group."""
    yield from divisibility.check_routing_groups(spec, _written_mesh(spec))


def check_pipeline(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`pipeline.microbatches` must be a multiple of the number of pipeline stages."""
    yield from check_microbatches(spec, _written_mesh(spec))


def check_strategy(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Degrees and rules must not be set with `strategy: auto`, which chooses them."""
    if spec.parallelism.strategy == AUTO:
        for name in list_explicit_fields(spec):
            value = getattr(spec.parallelism, name).model_dump(exclude_defaults=True)
            message = "must not be set together with `strategy: auto`, which chooses it. Remove one of the two."
            yield Problem(f"spec.parallelism.{name}", value, message, (f"spec.parallelism.strategy: {EXPLICIT}",))


def warn_of_tensor_over_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Tensor parallelism over DCN makes each layer wait for the network between slices."""
    yield from _warn_over_dcn(
        spec, "tensor", "waits for the network between slices several times per gradient-accumulation step"
    )


def warn_of_context_over_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Context parallelism over DCN sends keys and values between slices in each layer."""
    verb = "all-gathers" if spec.parallelism.context.exchange == "gather" else "sends"
    is_only_ring = spec.parallelism.context.exchange == "ring" and spec.parallelism.ici.context == 1
    yield from _warn_over_dcn(
        spec,
        "context",
        f"{verb} keys and values over the network between slices",
        "1 and spec.parallelism.context.exchange: gather" if is_only_ring else "1",
    )


def warn_of_experts_over_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Expert parallelism over DCN sends tokens between slices in each layer."""
    yield from _warn_over_dcn(spec, "expert", "sends tokens to their experts and back over the network between slices")


def check_repeats(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`pipeline.repeats` must be set only with `schedule: circular`."""
    pipeline, name = spec.parallelism.pipeline, "spec.parallelism.pipeline"
    if pipeline.repeats and pipeline.schedule != "circular":
        message = f"must not be set with {quote_field(f'{name}.schedule', pipeline.schedule)}."
        yield Problem(f"{name}.repeats", pipeline.repeats, message, (f"{name}.schedule: circular",))


def warn_of_unused_pipeline_settings(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The settings of a pipeline have no effect without stages."""
    parallelism = spec.parallelism
    if parallelism.ici.stage == parallelism.dcn.stage == 1 and parallelism.strategy != AUTO:
        for name, value in parallelism.pipeline.model_dump(exclude_defaults=True).items():
            message = has_no_effect("the axis `stage` has degree 1 in `ici` and `dcn`")
            yield Problem(f"spec.parallelism.pipeline.{name}", value, message)


def warn_of_unused_ring(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`context.exchange: ring` has no effect without the axis `context`."""
    ici, dcn, exchange = spec.parallelism.ici, spec.parallelism.dcn, spec.parallelism.context.exchange
    if exchange == "ring" and ici.context == dcn.context == 1 and spec.parallelism.strategy != AUTO:
        message = has_no_effect("the axis `context` has degree 1 in `ici` and `dcn`")
        yield Problem("spec.parallelism.context.exchange", exchange, message)


def warn_of_unused_stream_sharding(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`shardStreamOverTensor` has no effect without the axis `tensor`."""
    parallelism, is_sharded = spec.parallelism, spec.parallelism.shard_stream_over_tensor
    if is_sharded and parallelism.ici.tensor == parallelism.dcn.tensor == 1 and parallelism.strategy != AUTO:
        message = has_no_effect("the axis `tensor` has degree 1 in `ici` and `dcn`")
        yield Problem("spec.parallelism.shardStreamOverTensor", is_sharded, message, ("false",))


def warn_of_unsharded_vocabulary(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A vocabulary that the `tensor` degree does not divide is not sharded."""
    degree = max(spec.parallelism.ici.tensor, 1) * max(spec.parallelism.dcn.tensor, 1)
    vocab = spec.model.vocab_size
    if vocab % degree:
        message = (
            f"{vocab} should be a multiple of the tensor degree ({degree}). Otherwise the axis `tensor` shards neither "
            "the embedding nor the logits."
        )
        yield Problem("spec.model.vocabSize", vocab, message, (str(-(-vocab // degree) * degree),))


def warn_of_shared_logits(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Stages that alternate between both passes share the logits of a microbatch, if they divide the vocabulary."""
    mesh, vocab = _written_mesh(spec), spec.model.vocab_size
    degrees = combine_degrees(mesh.ici, mesh.dcn)
    parts = degrees["stage"] * degrees["tensor"]
    if spec.parallelism.pipeline.alternates(degrees["stage"]) and vocab % parts:
        message = (
            f"{vocab} should be a multiple of the stages times the tensor degree ({parts}). Otherwise each stage "
            "computes the logits of all microbatches."
        )
        yield Problem("spec.model.vocabSize", vocab, message, (str(-(-vocab // parts) * parts),))


def _warn_over_dcn(spec: TrainingJobSpec, axis: Axis, cost: str, nearest: str = "1") -> Iterator[Problem]:
    degree: int = getattr(spec.parallelism.dcn, axis)
    if degree not in (0, 1):
        yield Problem(f"{DCN}.{axis}", degree, f"should be 1, because each layer {cost}.", (nearest,))


def _written_mesh(spec: TrainingJobSpec) -> Mesh:
    return Mesh(_replace_inferred(spec.parallelism.ici), _replace_inferred(spec.parallelism.dcn))


def _replace_inferred(degrees: AxisDegrees) -> AxisDegrees:
    """Return the degrees with 1 in place of -1 and 0."""
    return degrees.model_copy(update={axis: 1 for axis, degree in degrees.items() if degree in (INFERRED, 0)})


_SLICE = ("slices.accelerator", "slices.topology")
_COUNTS = ("slices.count", "slices.min", "slices.max")

_WIDTHS = ("model.experts", "model.layers", "model.numLayers", "model.latentAttention")

RULES: tuple[Rule | HardwareRule, ...] = (
    HardwareRule(("slices.accelerator",), check_accelerator),
    HardwareRule(_SLICE, check_topology),
    Rule(_COUNTS, check_slice_counts),
    Rule((*_COUNTS, "slices.allowed"), check_allowed_range),
    HardwareRule((*_SLICE, *_COUNTS), check_host_limit),
    HardwareRule((*_SLICE, "parallelism.ici"), check_ici),
    Rule(("parallelism.dcn",), check_dcn),
    Rule(("parallelism", *LAYERS.dims, "model.layers"), check_layers),
    Rule(("parallelism", *WIDTH.dims, "model.experts"), check_width),
    Rule(("parallelism", *(field for field, _ in divisibility.RULE_DIMS.values()), *_WIDTHS), check_rules),
    Rule(("parallelism", *SEQUENCE.dims), check_sequence),
    Rule(("parallelism", *HEADS.dims, *_WIDTHS), check_heads),
    Rule(("parallelism", "model.experts"), check_experts),
    Rule(("parallelism", "model.experts", "training.sequenceLength"), check_groups),
    Rule(("parallelism",), check_pipeline),
    Rule(("parallelism.pipeline",), check_repeats),
    Rule(("parallelism",), check_strategy),
)
WARNINGS = (
    Rule(("parallelism.dcn.tensor",), warn_of_tensor_over_dcn),
    Rule(
        ("parallelism.dcn.context", "parallelism.ici.context", "parallelism.context.exchange"), warn_of_context_over_dcn
    ),
    Rule(("parallelism.dcn.expert",), warn_of_experts_over_dcn),
    Rule(("parallelism",), warn_of_unused_pipeline_settings),
    Rule(("parallelism",), warn_of_unused_ring),
    Rule(("parallelism",), warn_of_unused_stream_sharding),
    Rule(("parallelism.ici.tensor", "parallelism.dcn.tensor", "model.vocabSize"), warn_of_unsharded_vocabulary),
    Rule(("parallelism", "model.vocabSize"), warn_of_shared_logits),
)
