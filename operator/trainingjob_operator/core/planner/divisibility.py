"""Divisibility checks: mesh degrees must divide the dims, experts and sequences that they shard.

Each check takes a mesh whose -1 degrees are replaced. If the mesh is filled, the replacement is the inferred degree;
otherwise it is 1.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from trainingjob_api.base import Axis
from trainingjob_api.network.layers import arrange
from trainingjob_api.problem import Problem
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees, Rules
from trainingjob_api.token_order import order_chunks
from trainingjob_operator.core.planner.mesh import INFERRED, combine_degrees, nearest_divisors, nearest_multiples
from trainingjob_operator.core.planner.problem_messages import must_divide, quote_field
from trainingjob_operator.core.units import pluralize

ICI = "spec.parallelism.ici"
DCN = "spec.parallelism.dcn"


@dataclass(frozen=True)
class Mesh:
    """The resolved degrees at one size."""

    ici: AxisDegrees
    dcn: AxisDegrees


@dataclass(frozen=True)
class ShardedDims:
    """Mesh axes that shard some dims together: the product of their degrees must divide each of these dims."""

    axes: tuple[Axis, ...]
    dims: Mapping[str, Callable[[TrainingJobSpec], int]]
    """Dims by the path of their field, without `spec`. Size 0: the model has no such dim."""


def _dense_width(spec: TrainingJobSpec) -> int:
    """Return the width of MLPs outside of experts; 0: there are none."""
    model, experts = spec.model, spec.model.experts
    has_dense = any(kind.feed_forward == "dense" for kind in arrange(model.layers, model.num_layers).kinds)
    return model.mlp_dim if has_dense or experts is None or experts.mlp_dim is None else 0


def _expert_width(spec: TrainingJobSpec) -> int:
    """Return the width of experts, if it is one of their own."""
    experts = spec.model.experts
    return experts.mlp_dim or 0 if experts else 0


def _kv_heads(spec: TrainingJobSpec) -> int:
    """Return the number of key and value heads; 0: the model has latent attention."""
    return 0 if spec.model.latent_attention else spec.model.kv_heads


def _repeats(spec: TrainingJobSpec) -> int:
    """Return how often the pattern of layers repeats."""
    return arrange(spec.model.layers, spec.model.num_layers).repeats


LAYERS = ShardedDims(("stage",), {"model.numLayers": _repeats})
WIDTH = ShardedDims(RULES["embed"], {"model.embedDim": lambda spec: spec.model.embed_dim})
SEQUENCE = ShardedDims(("context",), {"training.sequenceLength": lambda spec: spec.training.sequence_length})
EXPERTS = ShardedDims(
    ("expert",), {"model.experts.count": lambda spec: spec.model.experts.count if spec.model.experts else 1}
)
HEADS = ShardedDims(
    ("tensor",),
    {
        "model.numHeads": lambda spec: spec.model.num_heads,
        "model.numKvHeads": _kv_heads,
        "model.mlpDim": _dense_width,
        "model.experts.mlpDim": _expert_width,
    },
)
RULE_DIMS: Mapping[str, tuple[str, Callable[[TrainingJobSpec], int]]] = {
    "embed": ("model.embedDim", lambda spec: spec.model.embed_dim),
    "vocab": ("model.vocabSize", lambda spec: spec.model.vocab_size),
    "heads": ("model.numHeads", lambda spec: spec.model.num_heads),
    "kv_heads": ("model.numKvHeads", _kv_heads),
    "mlp": ("model.mlpDim", _dense_width),
    "experts": ("model.experts.count", lambda spec: spec.model.experts.count if spec.model.experts else 0),
    "expert_embed": ("model.embedDim", lambda spec: spec.model.embed_dim if spec.model.experts else 0),
}
"""The dim that a sharding rule of the spec applies to, by logical axis: the path of its field without `spec`, and its
size. Size 0: the model has no such dim."""


def check_divisible(spec: TrainingJobSpec, split: ShardedDims, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the degrees of the mesh divide the dims that they shard."""
    factors = [
        (path, axis, value)
        for path, degrees in ((ICI, mesh.ici), (DCN, mesh.dcn))
        for axis in split.axes
        if (value := getattr(degrees, axis)) > 1
    ]
    if not factors:
        return
    degree = math.prod([value for *_, value in factors])
    dims = {f"spec.{path}": read(spec) for path, read in split.dims.items()}
    undivided = [quote_field(name, dim) for name, dim in dims.items() if dim % degree]
    if not undivided:
        return
    (path, axis, value), *others = factors
    product = " x ".join(f"{'ici' if network == ICI else 'dcn'} {name}={of}" for network, name, of in factors)
    message = must_divide(f"{degree} ({product})" if others else value, undivided)
    fixed = degree // value
    common = math.gcd(*dims.values())
    if len(dims) == 1:  # a dim is easier to change than a mesh
        nearest = tuple(f"{name}: {near}" for name in dims for near in nearest_multiples(degree, common))
    elif common % fixed:
        nearest = ()
    else:
        nearest = _nearest_degrees(spec, mesh, path, axis, common // fixed, is_filled=is_filled)
    yield Problem(f"{path}.{axis}", value, message, nearest)


def check_sequence(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the axis `context` divides a sequence: into one part for each device, or into two with a ring."""
    problems = tuple(check_divisible(spec, SEQUENCE, mesh, is_filled=is_filled))
    yield from problems
    length, chunks = spec.training.sequence_length, _count_chunks(spec, mesh)
    if not problems and length % chunks:
        name = "spec.training.sequenceLength"
        message = (
            f"ring must divide {quote_field(name, length)} into {chunks} chunks of equal length, two for each device "
            "along `context`."
        )
        nearest = (*(f"{name}: {near}" for near in nearest_multiples(chunks, length)), "gather")
        yield Problem("spec.parallelism.context.exchange", "ring", message, nearest)
    parts = mesh.ici.context * mesh.dcn.context * mesh.ici.tensor * mesh.dcn.tensor
    is_sharded = spec.parallelism.shard_stream_over_tensor
    if is_sharded and not problems and length % parts:
        name = "spec.training.sequenceLength"
        message = (
            f"the product of the degrees of `context` and `tensor` ({parts}) must divide {quote_field(name, length)}."
        )
        nearest = (*(f"{name}: {near}" for near in nearest_multiples(parts, length)), "false")
        yield Problem("spec.parallelism.shardStreamOverTensor", is_sharded, message, nearest)


def _count_chunks(spec: TrainingJobSpec, mesh: Mesh) -> int:
    """Return the parts of a sequence whose tokens stay together: one for each device along `context`, or two."""
    context = mesh.ici.context * mesh.dcn.context
    return max(context, len(order_chunks(spec.parallelism.context.exchange, context)))


def check_stages(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the layers of a pipeline are all of one pattern, and that its stages divide the repeats."""
    layers = arrange(spec.model.layers, spec.model.num_layers)
    if layers.is_uniform:
        problems = tuple(check_divisible(spec, LAYERS, mesh, is_filled=is_filled))
        yield from problems or _check_repeats(spec, mesh, layers.repeats)
        return
    for path, degree in ((ICI, mesh.ici.stage), (DCN, mesh.dcn.stage)):
        if degree > 1:
            others = pluralize(len(layers.leading) + len(layers.trailing), "layer")
            message = f"{degree} must be 1, because `spec.model.layers` leaves {others} outside of a whole pattern."
            nearest = _nearest_degrees(spec, mesh, path, "stage", 1, is_filled=is_filled)
            yield Problem(f"{path}.stage", degree, message, nearest)


def _check_repeats(spec: TrainingJobSpec, mesh: Mesh, layers: int) -> Iterator[Problem]:
    """Check that the groups of a circular schedule divide the layers of a stage, which has `layers` of all stages."""
    stages, repeats = mesh.ici.stage * mesh.dcn.stage, spec.parallelism.pipeline.groups
    if stages > 1 and layers // stages % repeats:
        name = "spec.parallelism.pipeline"
        message = f"{repeats} must divide the {pluralize(layers // stages, 'repeated layer')} of a stage."
        nearest = tuple(str(near) for near in nearest_divisors(layers // stages, repeats) if near > 1)
        yield Problem(
            f"{name}.repeats", spec.parallelism.pipeline.repeats, message, nearest or (f"{name}.schedule: gpipe",)
        )


def check_model_width(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the model width is divisible where the spec keeps the built-in sharding rules."""
    overrides = spec.parallelism.rules.overrides()
    if "embed" not in overrides:
        yield from check_divisible(spec, WIDTH, mesh, is_filled=is_filled)
    elif spec.model.experts and "expert_embed" not in overrides:
        yield from check_divisible(spec, replace(WIDTH, axes=RULES["expert_embed"]), mesh, is_filled=is_filled)


def check_sharding_rules(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that the mesh divides the dims of the spec's sharding rules."""
    overrides = spec.parallelism.rules.overrides()
    if not overrides:
        return
    degrees = combine_degrees(mesh.ici, mesh.dcn)
    for name, axes in overrides.items():
        field, read = RULE_DIMS[name]
        dim, split = read(spec), {axis: degrees[axis] for axis in axes if degrees[axis] > 1}
        if dim % math.prod(split.values()):
            product = " x ".join(f"{axis}={degree}" for axis, degree in split.items())
            divisor = f"{math.prod(split.values())} ({product})" if len(split) > 1 else product
            message = must_divide(divisor, [quote_field(f"spec.{field}", dim)])
            valid_axes = next(
                axes[:count]
                for count in range(len(axes), -1, -1)
                if dim % math.prod(degrees[axis] for axis in axes[:count]) == 0
            )
            yield Problem(rule_path(name), list(axes), message, (format_axes(valid_axes),))


def rule_path(name: str) -> str:
    """Return the path of the rule for a logical axis."""
    return f"spec.parallelism.rules.{Rules.model_fields[name].alias}"


def format_axes(axes: tuple[Axis, ...]) -> str:
    """Return axes as a YAML list: `[fsdp, tensor]`."""
    return f"[{', '.join(axes)}]"


def check_experts(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the model has experts to shard, and that the expert degree divides their number."""
    if spec.model.experts:
        yield from check_divisible(spec, EXPERTS, mesh, is_filled=is_filled)
        return
    for path, degree in ((ICI, mesh.ici.expert), (DCN, mesh.dcn.expert)):
        if degree > 1:
            message = f"{degree} must be 1, because `spec.model.experts` is not set."
            nearest = _nearest_degrees(spec, mesh, path, "expert", 1, is_filled=is_filled)
            yield Problem(f"{path}.expert", degree, message, nearest)


def check_routing_groups(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that no routing group crosses the boundary between two context shards, or two chunks of a ring.

    Dropless experts have no slots, so that a whole sequence may be their group.
    """
    experts, length = spec.model.experts, spec.training.sequence_length
    parts = _count_chunks(spec, mesh)
    if experts is None or length % parts:
        return
    part, tokens = length // parts, experts.group_size(length)
    if experts.dispatch == "dropless" and tokens == length:
        return
    if part % tokens and length % tokens == 0:
        is_ring = parts > mesh.ici.context * mesh.dcn.context
        location = "in each chunk of a ring" if is_ring else "on each shard of the axis `context`"
        message = f"a routing group of {tokens} tokens must divide the {part} tokens of a sequence {location}."
        nearest = tuple(str(near) for near in nearest_divisors(part, tokens))
        yield Problem("spec.model.experts.groupLength", experts.group_length, message, nearest)


def _nearest_degrees(
    spec: TrainingJobSpec, mesh: Mesh, path: str, axis: Axis, common: int, *, is_filled: bool
) -> tuple[str, ...]:
    """Return the nearest degrees of an axis that divide `common`, with the product of all degrees unchanged.

    The axis with degree -1 absorbs the change. Without such an axis the suggestion changes `data` too, because `data`
    splits only the batch.
    """
    degrees, spec_degrees = (mesh.ici, spec.parallelism.ici) if path == ICI else (mesh.dcn, spec.parallelism.dcn)
    rest = next((other for other, degree in spec_degrees.items() if degree == INFERRED and other != axis), None)
    if rest and not is_filled:
        return tuple(str(near) for near in nearest_divisors(common, getattr(degrees, axis)))
    fixed = math.prod(degree for other, degree in degrees.items() if other not in (axis, rest or "data"))
    remaining = math.prod(degree for _, degree in degrees.items()) // fixed
    near = nearest_divisors(math.gcd(common, remaining), getattr(degrees, axis))
    if rest:
        return tuple(str(degree) for degree in near)
    return tuple(f"{path}.{axis}: {degree} and {path}.data: {remaining // degree}" for degree in near)
