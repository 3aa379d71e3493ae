"""What the mesh splits: the dims, experts and sequences that its degrees must divide.

Each check takes a mesh with a number in the place of each -1: what is left, or 1 where that is not known and the mesh
is not filled.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from trainingjob_api.base import Axis
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.machine import AxisDegrees, Rules
from trainingjob_api.problem import Problem
from trainingjob_api.sharding import RULES
from trainingjob_operator.core.planner.mesh import REST, combine, nearest_divisors, nearest_multiples

ICI = "spec.parallelism.ici"
DCN = "spec.parallelism.dcn"


@dataclass(frozen=True)
class Mesh:
    """The resolved degrees at one size."""

    ici: AxisDegrees
    dcn: AxisDegrees


@dataclass(frozen=True)
class Split:
    """Mesh axes that split some dims together: their product must divide each of these."""

    axes: tuple[Axis, ...]
    dims: Mapping[str, Callable[[TrainingJobSpec], int]]
    """By the path of the field, without `spec`."""


LAYERS = Split(("stage",), {"model.numLayers": lambda spec: spec.model.num_layers})
WIDTH = Split(RULES["embed"], {"model.embedDim": lambda spec: spec.model.embed_dim})
SEQUENCE = Split(("context",), {"training.sequenceLength": lambda spec: spec.training.sequence_length})
EXPERTS = Split(
    ("expert",), {"model.experts.count": lambda spec: spec.model.experts.count if spec.model.experts else 1}
)
HEADS = Split(
    ("tensor",),
    {
        "model.numHeads": lambda spec: spec.model.num_heads,
        "model.numKvHeads": lambda spec: spec.model.num_kv_heads,
        "model.mlpDim": lambda spec: spec.model.mlp_dim,
    },
)
RULED: Mapping[str, tuple[str, Callable[[TrainingJobSpec], int]]] = {
    "embed": ("model.embedDim", lambda spec: spec.model.embed_dim),
    "vocab": ("model.vocabSize", lambda spec: spec.model.vocab_size),
    "heads": ("model.numHeads", lambda spec: spec.model.num_heads),
    "kv_heads": ("model.numKvHeads", lambda spec: spec.model.num_kv_heads),
    "mlp": ("model.mlpDim", lambda spec: spec.model.mlp_dim),
    "experts": ("model.experts.count", lambda spec: spec.model.experts.count if spec.model.experts else 0),
    "expert_embed": ("model.embedDim", lambda spec: spec.model.embed_dim if spec.model.experts else 0),
}
"""What a rule of the spec splits, by logical axis: the path of its field, without `spec`, and its size; 0: nothing."""


def check_split(spec: TrainingJobSpec, split: Split, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the mesh's degrees divide what they split."""
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
    undivided = [f"{name}, {dim}" for name, dim in dims.items() if dim % degree]
    if not undivided:
        return
    (path, axis, value), *others = factors
    product = " x ".join(f"{'ici' if network == ICI else 'dcn'} {name}={of}" for network, name, of in factors)
    who = f"{product} = {degree}" if others else str(value)
    message = f"{who} does not divide {' and '.join(undivided)}."
    fixed = degree // value
    common = math.gcd(*dims.values())
    if len(dims) == 1:  # one dim is easier to change than a mesh
        nearest = tuple(f"{name}: {near}" for name in dims for near in nearest_multiples(degree, common))
    elif common % fixed:
        nearest = ()
    else:
        nearest = _nearest_degrees(spec, mesh, path, axis, common // fixed, is_filled=is_filled)
    yield Problem(f"{path}.{axis}", value, message, nearest)


def check_width(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that the model's width can be split as the built-in rules have it, where they stand."""
    written = spec.parallelism.rules.written()
    if "embed" not in written:
        yield from check_split(spec, WIDTH, mesh, is_filled=is_filled)
    elif spec.model.experts and "expert_embed" not in written:
        yield from check_split(spec, replace(WIDTH, axes=RULES["expert_embed"]), mesh, is_filled=is_filled)


def check_rules(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that the mesh divides what the rules of the spec split."""
    written = spec.parallelism.rules.written()
    if not written:
        return
    degrees = combine(mesh.ici, mesh.dcn)
    for name, axes in written.items():
        field, read = RULED[name]
        dim, split = read(spec), {axis: degrees[axis] for axis in axes if degrees[axis] > 1}
        if dim % math.prod(split.values()):
            product = " x ".join(f"{axis}={degree}" for axis, degree in split.items())
            message = f"{product} does not divide spec.{field}, {dim}."
            kept = next(
                axes[:count]
                for count in range(len(axes), -1, -1)
                if dim % math.prod(degrees[axis] for axis in axes[:count]) == 0
            )
            yield Problem(path_of_rule(name), list(axes), message, (write_axes(kept),))


def path_of_rule(name: str) -> str:
    """Return the path of the rule for a logical axis."""
    return f"spec.parallelism.rules.{Rules.model_fields[name].alias}"


def write_axes(axes: tuple[Axis, ...]) -> str:
    """Return axes as YAML has them: `[fsdp, tensor]`."""
    return f"[{', '.join(axes)}]"


def check_experts(spec: TrainingJobSpec, mesh: Mesh, *, is_filled: bool) -> Iterator[Problem]:
    """Check that there are experts to spread, and as many on each device."""
    if spec.model.experts:
        yield from check_split(spec, EXPERTS, mesh, is_filled=is_filled)
        return
    for path, degree in ((ICI, mesh.ici.expert), (DCN, mesh.dcn.expert)):
        if degree > 1:
            message = f"{degree} has nothing to spread: spec.model.experts is not set."
            nearest = _nearest_degrees(spec, mesh, path, "expert", 1, is_filled=is_filled)
            yield Problem(f"{path}.expert", degree, message, nearest)


def check_groups(spec: TrainingJobSpec, mesh: Mesh) -> Iterator[Problem]:
    """Check that tokens which compete for the same expert lie in the same part of a sequence."""
    experts, length = spec.model.experts, spec.training.sequence_length
    context = mesh.ici.context * mesh.dcn.context
    if experts is None or length % context:
        return
    part, tokens = length // context, experts.tokens_of_group(length)
    if part % tokens and length % tokens == 0:
        message = f"{tokens} tokens do not fit evenly into {part}, the part of a sequence that the axis context leaves."
        nearest = tuple(str(near) for near in nearest_divisors(part, tokens))
        yield Problem("spec.model.experts.groupLength", experts.group_length, message, nearest)


def _nearest_degrees(
    spec: TrainingJobSpec, mesh: Mesh, path: str, axis: Axis, common: int, *, is_filled: bool
) -> tuple[str, ...]:
    """Return the nearest degrees of an axis that divide a number while the product stays what it is.

    An axis of -1 takes what is left then. There is none: nobody asked for that, so `data` does, which splits only the
    batch.
    """
    degrees, written = (mesh.ici, spec.parallelism.ici) if path == ICI else (mesh.dcn, spec.parallelism.dcn)
    rest = next((other for other, degree in written.items() if degree == REST and other != axis), None)
    if rest and not is_filled:
        return tuple(str(near) for near in nearest_divisors(common, getattr(degrees, axis)))
    kept = math.prod(degree for other, degree in degrees.items() if other not in (axis, rest or "data"))
    left = math.prod(degree for _, degree in degrees.items()) // kept
    near = nearest_divisors(math.gcd(common, left), getattr(degrees, axis))
    if rest:
        return tuple(str(degree) for degree in near)
    return tuple(f"{path}.{axis}: {degree} and {path}.data: {left // degree}" for degree in near)
