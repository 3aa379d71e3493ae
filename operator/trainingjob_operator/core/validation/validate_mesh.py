"""Rules about slices and the mesh that do not depend on the number of slices."""

from collections.abc import Iterator

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
from trainingjob_operator.core.planner.hardware import CPU, Hardware
from trainingjob_operator.core.planner.mesh import INFERRED, check_degree_form, check_degree_product
from trainingjob_operator.core.planner.size_planner import check_microbatches, describe_slice
from trainingjob_operator.core.planner.strategy import AUTO, list_explicit_fields
from trainingjob_operator.core.units import pluralize
from trainingjob_operator.core.validation.rule import HardwareRule, Rule

MAX_HOSTS = 4096
"""Hosts of a job at its largest size. The status lists each of them."""


def check_accelerator(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The accelerator must be a row of the hardware table."""
    accelerator = spec.slices.accelerator
    if accelerator not in hardware.accelerators:
        message = f"{accelerator} is not an accelerator that this operator knows."
        yield Problem(
            "spec.slices.accelerator", accelerator, message, nearest_names(accelerator, hardware.accelerators)
        )


def check_topology(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The accelerator must have slices of that topology."""
    accelerator, topology = spec.slices.accelerator, spec.slices.topology
    if accelerator not in hardware.accelerators or hardware.find_shape(accelerator, topology):
        return
    reason = "hosts x devices a host, at most 256 x 64" if accelerator == CPU else f"a topology of {accelerator}"
    nearest = tuple(hardware.nearest_topologies(accelerator, topology))
    yield Problem("spec.slices.topology", topology, f"{topology} is not {reason}.", nearest)


def check_slice_counts(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job has either `count`, or `min` and `max` in this order."""
    slices = spec.slices
    written = {name: getattr(slices, name) for name in ("min", "max") if getattr(slices, name) is not None}
    if slices.count is not None and written:
        names = " and ".join(written)
        message = f"excludes {names}: a fixed size is `count` alone, an elastic one `min` and `max`."
        yield Problem("spec.slices.count", slices.count, message)
    elif slices.count is None and not written:
        message = "says not how many: write `count` for a fixed size, or `min` and `max` for an elastic one."
        yield Problem("spec.slices", None, message, ("count: 1", "min: 1 and max: 2"))
    elif slices.count is None and len(written) == 1:
        (name, value), missing = *written.items(), {"min": "max", "max": "min"}[next(iter(written))]
        message = f"is missing beside {name}, {value}: an elastic size has both."
        yield Problem(f"spec.slices.{missing}", None, message, (str(value),))
    elif slices.min is not None and slices.max is not None and slices.min > slices.max:
        message = f"{slices.min} is above spec.slices.max, {slices.max}."
        yield Problem("spec.slices.min", slices.min, message, (str(slices.max),))


def check_allowed_range(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The sizes that are written out lie from `min` to `max`, and both are among them."""
    slices, path = spec.slices, "spec.slices.allowed"
    if slices.allowed is None:
        return
    if slices.count is not None:
        yield Problem(path, list(slices.allowed), "only goes with `min` and `max`: a fixed size is `count` alone.")
        return
    if slices.min is None or slices.max is None or slices.min > slices.max:
        return  # another rule reports this
    legal = sorted({slices.min, slices.max, *(n for n in slices.allowed if slices.min <= n <= slices.max)})
    if sorted(set(slices.allowed)) != legal:
        bounds = f"from spec.slices.min, {slices.min}, to spec.slices.max, {slices.max}"
        message = f"{list(slices.allowed)} must be {bounds}, with both among them."
        yield Problem(path, list(slices.allowed), message, (str(legal),))


def check_host_limit(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The largest size must not have more hosts than a status can name."""
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    if shape is None or spec.slices.max_slices * shape.num_hosts <= MAX_HOSTS:
        return
    field = "count" if spec.slices.count else "max"
    most = MAX_HOSTS // shape.num_hosts
    message = (
        f"{pluralize(spec.slices.max_slices, 'slice')} of {pluralize(shape.num_hosts, 'host')} are "
        f"{pluralize(spec.slices.max_slices * shape.num_hosts, 'host')}, but a job has at most {MAX_HOSTS:,}."
    )
    yield Problem(f"spec.slices.{field}", spec.slices.max_slices, message, (str(most),))


def check_ici(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """The ICI degrees must fill one slice."""
    yield from check_degree_form(ICI, spec.parallelism.ici)
    shape = hardware.find_shape(spec.slices.accelerator, spec.slices.topology)
    if shape:
        yield from check_degree_product(ICI, spec.parallelism.ici, shape.num_devices, describe_slice(shape))


def check_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The DCN degrees must be well-formed; whether they fill the slices is asked of each size."""
    yield from check_degree_form(DCN, spec.parallelism.dcn)


def check_layers(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The stages of a pipeline must divide the layers."""
    yield from check_divisible(spec, LAYERS, _written_mesh(spec), is_filled=False)


def check_width(spec: TrainingJobSpec) -> Iterator[Problem]:
    """What fsdp and context split together must divide the model's width, also where other degrees are wrong."""
    yield from divisibility.check_model_width(spec, _written_mesh(spec), is_filled=False)


def check_rules(spec: TrainingJobSpec) -> Iterator[Problem]:
    """What the rules for parameters split must be divided by the mesh."""
    yield from divisibility.check_sharding_rules(spec, _written_mesh(spec))


def check_sequence(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Context parallelism must divide the sequence."""
    yield from check_divisible(spec, SEQUENCE, _written_mesh(spec), is_filled=False)


def check_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Tensor parallelism must divide heads and MLP, also where other degrees are wrong."""
    yield from check_divisible(spec, HEADS, _written_mesh(spec), is_filled=False)


def check_experts(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Expert parallelism needs experts, and must divide their number."""
    yield from divisibility.check_experts(spec, _written_mesh(spec), is_filled=False)


def check_groups(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Tokens that compete for an expert must lie together where context parallelism splits a sequence."""
    yield from divisibility.check_routing_groups(spec, _written_mesh(spec))


def check_pipeline(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The stages of a pipeline must divide its microbatches."""
    yield from check_microbatches(spec, _written_mesh(spec))


def check_strategy(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Degrees and rules are written, or the planner chooses them."""
    if spec.parallelism.strategy == AUTO:
        for name in list_explicit_fields(spec):
            value = getattr(spec.parallelism, name).model_dump(exclude_defaults=True)
            message = "`strategy: auto` chooses it: leave it away, or choose all of it."
            yield Problem(f"spec.parallelism.{name}", value, message, (f"spec.parallelism.strategy: {EXPLICIT}",))


def warn_of_tensor_over_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Tensor parallelism across slices waits for the slow network in each layer."""
    degree = spec.parallelism.dcn.tensor
    if degree not in (0, 1):
        message = "each layer waits for the network between slices, several times a microstep."
        yield Problem(f"{DCN}.tensor", degree, message, ("1",))


def warn_of_context_over_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Context parallelism across slices waits for the slow network in each layer."""
    degree = spec.parallelism.dcn.context
    if degree not in (0, 1):
        message = "each layer gathers keys and values over the network between slices."
        yield Problem(f"{DCN}.context", degree, message, ("1",))


def warn_of_experts_over_dcn(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Expert parallelism across slices sends tokens over the slow network in each layer."""
    degree = spec.parallelism.dcn.expert
    if degree not in (0, 1):
        message = "each layer sends tokens to their experts and back over the network between slices."
        yield Problem(f"{DCN}.expert", degree, message, ("1",))


def warn_of_unused_pipeline_settings(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Settings of the pipeline mean nothing without stages."""
    microbatches = spec.parallelism.pipeline.microbatches
    if microbatches is not None and spec.parallelism.ici.stage == spec.parallelism.dcn.stage == 1:
        message = "has no effect: the axis stage has degree 1 inside and across slices."
        yield Problem("spec.parallelism.pipeline.microbatches", microbatches, message)


def warn_of_unsharded_vocabulary(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A vocabulary that the tensor axis does not divide is not split."""
    degree = max(spec.parallelism.ici.tensor, 1) * max(spec.parallelism.dcn.tensor, 1)
    vocab = spec.model.vocab_size
    if vocab % degree:
        message = f"{vocab} is not a multiple of {degree}, the tensor degree: every device holds the whole embedding."
        yield Problem("spec.model.vocabSize", vocab, message, (str(-(-vocab // degree) * degree),))


def _written_mesh(spec: TrainingJobSpec) -> Mesh:
    return Mesh(_replace_inferred(spec.parallelism.ici), _replace_inferred(spec.parallelism.dcn))


def _replace_inferred(degrees: AxisDegrees) -> AxisDegrees:
    """Return the degrees with 1 in place of -1 and 0."""
    return degrees.model_copy(update={axis: 1 for axis, degree in degrees.items() if degree in (INFERRED, 0)})


_SLICE = ("slices.accelerator", "slices.topology")
_COUNTS = ("slices.count", "slices.min", "slices.max")

RULES: tuple[Rule | HardwareRule, ...] = (
    HardwareRule(("slices.accelerator",), check_accelerator),
    HardwareRule(_SLICE, check_topology),
    Rule(_COUNTS, check_slice_counts),
    Rule((*_COUNTS, "slices.allowed"), check_allowed_range),
    HardwareRule((*_SLICE, *_COUNTS), check_host_limit),
    HardwareRule((*_SLICE, "parallelism.ici"), check_ici),
    Rule(("parallelism.dcn",), check_dcn),
    Rule(("parallelism", *LAYERS.dims), check_layers),
    Rule(("parallelism", *WIDTH.dims, "model.experts"), check_width),
    Rule(("parallelism", *(field for field, _ in divisibility.RULE_DIMS.values()), "model.experts"), check_rules),
    Rule(("parallelism", *SEQUENCE.dims), check_sequence),
    Rule(("parallelism", *HEADS.dims), check_heads),
    Rule(("parallelism", "model.experts"), check_experts),
    Rule(("parallelism", "model.experts", "training.sequenceLength"), check_groups),
    Rule(("parallelism",), check_pipeline),
    Rule(("parallelism",), check_strategy),
)
WARNINGS = (
    Rule(("parallelism.dcn.tensor",), warn_of_tensor_over_dcn),
    Rule(("parallelism.dcn.context",), warn_of_context_over_dcn),
    Rule(("parallelism.dcn.expert",), warn_of_experts_over_dcn),
    Rule(("parallelism",), warn_of_unused_pipeline_settings),
    Rule(("parallelism.ici.tensor", "parallelism.dcn.tensor", "model.vocabSize"), warn_of_unsharded_vocabulary),
)
