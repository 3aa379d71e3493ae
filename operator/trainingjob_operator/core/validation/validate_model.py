"""Rules about the heads and the positions of a model."""

from collections.abc import Iterator

from trainingjob_api.network.rope import Rope
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.model import MAX_HEAD_DIM
from trainingjob_operator.core.planner.mesh import nearest_divisors
from trainingjob_operator.core.planner.problem_messages import has_no_effect, must_divide, quote_field
from trainingjob_operator.core.validation.rule import Rule, find_repeated

MODEL = "spec.model"
LENGTH = "spec.training.sequenceLength"


def check_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`model.numKvHeads` must divide `model.numHeads`."""
    heads, kv_heads = spec.model.num_heads, spec.model.num_kv_heads
    if kv_heads and heads % kv_heads:
        message = must_divide(kv_heads, [quote_field("spec.model.numHeads", heads)])
        nearest = tuple(str(divisor) for divisor in nearest_divisors(heads, kv_heads))
        yield Problem("spec.model.numKvHeads", kv_heads, message, nearest)


def check_head_dim(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`model.headDim` must be even, because rotary position embeddings rotate pairs of features."""
    head_dim = spec.model.head_dim
    if head_dim and head_dim % 2 and spec.model.positions == "rope":
        message = f"{head_dim} must be even. Rotary position embeddings rotate pairs of features."
        nearest = (str(head_dim - 1), str(head_dim + 1))
        yield Problem("spec.model.headDim", head_dim, message, nearest)


def check_default_head_dim(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Without `model.headDim`, `model.embedDim` must be an even multiple of `model.numHeads`."""
    width, heads = spec.model.embed_dim, spec.model.num_heads
    exact = width / heads
    if (
        spec.model.head_dim is None
        and spec.model.latent_attention is None
        and (width % (2 * heads) or exact > MAX_HEAD_DIM)
    ):
        ratio = f"{quote_field('spec.model.embedDim', width)} / {quote_field('spec.model.numHeads', heads)}"
        message = f"must be set, because its default, {ratio}, is not an even number from 2 to {MAX_HEAD_DIM}."
        below = min(int(exact) // 2 * 2, MAX_HEAD_DIM)
        nearest = [str(head_dim) for head_dim in (below, below + 2) if 2 <= head_dim <= MAX_HEAD_DIM]
        yield Problem("spec.model.headDim", None, message, tuple(nearest))


def check_latent_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Latent attention has neither `numKvHeads` nor `headDim`, and no options of grouped queries."""
    model, attention = spec.model, spec.model.attention
    if model.latent_attention is None:
        return
    options = {
        "numKvHeads": model.num_kv_heads,
        "headDim": model.head_dim,
        "attention.queryKeyNorm": attention.query_key_norm,
        "attention.bias": list(attention.bias) or None,
        "attention.sinks": attention.sinks or None,
        "attention.temperatureTuning": attention.temperature_tuning,
    }
    for field, value in options.items():
        if value is not None:
            message = "must not be set with `spec.model.latentAttention`, which has no such option. Remove it."
            yield Problem(f"{MODEL}.{field}", value, message)


def check_latent_positions(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`latentAttention.ropeDim` must be even."""
    latent = spec.model.latent_attention
    if latent and latent.rope_dim % 2:
        message = f"{latent.rope_dim} must be even. Rotary position embeddings rotate pairs of features."
        nearest = tuple(str(near) for near in (latent.rope_dim - 1, latent.rope_dim + 1) if near)
        yield Problem(f"{MODEL}.latentAttention.ropeDim", latent.rope_dim, message, nearest)


def check_attention_bias(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Projections in `attention.bias` must be unique."""
    yield from find_repeated(f"{MODEL}.attention.bias", spec.model.attention.bias)


def check_learned_positions(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Learned positions need a table with a row for each token of a sequence."""
    model, length = spec.model, spec.training.sequence_length
    if model.positions == "learned" and model.max_positions is None:
        message = "must be set with `spec.model.positions: learned`. It is the number of positions of the table."
        yield Problem(f"{MODEL}.maxPositions", None, message, (str(length),))
    elif model.positions != "learned" and model.max_positions is not None:
        message = f"must not be set with `spec.model.positions: {model.positions}`. Remove it, or change `positions`."
        yield Problem(f"{MODEL}.maxPositions", model.max_positions, message, (f"{MODEL}.positions: learned",))
    elif model.max_positions is not None and model.max_positions < length:
        message = f"{model.max_positions} must be at least {quote_field(LENGTH, length)}."
        nearest = (str(length), f"{LENGTH}: {model.max_positions}")
        yield Problem(f"{MODEL}.maxPositions", model.max_positions, message, nearest)


def check_norms_of_rotated_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`queryKeyNorm: l2` normalizes rotated queries and keys."""
    model = spec.model
    if model.attention.query_key_norm == "l2" and model.positions != "rope":
        message = f"must not be `l2` with `spec.model.positions: {model.positions}`. It normalizes rotated queries."
        nearest = ("perHead", "perProjection", f"{MODEL}.positions: rope")
        yield Problem(f"{MODEL}.attention.queryKeyNorm", "l2", message, nearest)


def check_ropes(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each `rope` must rotate pairs of features, and its scaling must be complete."""
    for path, rope in _find_ropes(spec):
        yield from _check_rotated_features(spec, path, rope)
        yield from _check_scaling(path, rope)


def _find_ropes(spec: TrainingJobSpec) -> Iterator[tuple[str, Rope]]:
    """Yield all rotary positions of a model with their paths."""
    yield f"{MODEL}.rope", spec.model.rope
    layers = spec.model.layers
    if layers:
        for section, kinds in (("leading", layers.leading), ("pattern", layers.pattern)):
            for number, kind in enumerate(kinds):
                if kind.rope:
                    yield f"{MODEL}.layers.{section}[{number}].rope", kind.rope


def _check_rotated_features(spec: TrainingJobSpec, path: str, rope: Rope) -> Iterator[Problem]:
    """Check that a share of the features consists of pairs."""
    model = spec.model
    width = model.latent_attention.rope_dim if model.latent_attention else model.heads.head_dim
    rotated = rope.rotated_dim(width)
    if rope.fraction < 1 and (rotated % 2 or rotated == 0):
        message = f"{rope.fraction:g} must rotate an even number of the {width} features of a head, not {rotated}."
        near = [even_dim / width for even_dim in (rotated // 2 * 2, rotated // 2 * 2 + 2) if 0 < even_dim <= width]
        yield Problem(f"{path}.fraction", rope.fraction, message, tuple(f"{share:g}" for share in near))


def _check_scaling(path: str, rope: Rope) -> Iterator[Problem]:
    """Check the length and the two limits of a scaling."""
    scaling = rope.scaling
    if scaling is None:
        return
    scaling_path = f"{path}.scaling"
    if scaling.type != "linear" and scaling.original_length is None:
        message = (
            f"must be set with `{scaling_path}.type: {scaling.type}`. It is the sequence length before the scaling."
        )
        yield Problem(f"{scaling_path}.originalLength", None, message, (f"{scaling_path}.type: linear",))
    for kind, options in (("llama3", scaling.llama3), ("yarn", scaling.yarn)):
        if options is not None and kind != scaling.type:
            message = f"must not be set with `{scaling_path}.type: {scaling.type}`. Remove it, or change the type."
            value = options.model_dump(by_alias=True)
            yield Problem(f"{scaling_path}.{kind}", value, message, (f"{scaling_path}.type: {kind}",))
    if scaling.llama3:
        low, high = scaling.llama3.low_frequency, scaling.llama3.high_frequency
        yield from _check_order(
            f"{scaling_path}.llama3.lowFrequency", low, f"{scaling_path}.llama3.highFrequency", high
        )
    if scaling.yarn:
        slow, fast = scaling.yarn.beta_slow, scaling.yarn.beta_fast
        yield from _check_order(f"{scaling_path}.yarn.betaSlow", slow, f"{scaling_path}.yarn.betaFast", fast)


def _check_order(low_path: str, low: float, high_path: str, high: float) -> Iterator[Problem]:
    if low > high:  # equal limits are a step, as in Kimi K2 and Llama 4
        message = f"{low:g} must be at most {quote_field(high_path, f'{high:g}')}."
        yield Problem(low_path, low, message, (f"{high:g}",))


def check_mlp(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`mlp.linearOffset` belongs to the values that a gate multiplies."""
    mlp = spec.model.mlp
    if mlp.linear_offset and not mlp.gated:
        message = "must not be set with `spec.model.mlp.gated: false`. It is added to what the gate multiplies."
        yield Problem(f"{MODEL}.mlp.linearOffset", mlp.linear_offset, message, (f"{MODEL}.mlp.gated: true",))


def warn_of_long_windows(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A window or chunk of at least a sequence has no effect."""
    length = spec.training.sequence_length
    for name, size in (("window", spec.model.attention.window), ("chunk", spec.model.attention.chunk)):
        if size and size >= length:
            message = has_no_effect(f"{quote_field(LENGTH, length)} is not longer", str(size))
            yield Problem(f"{MODEL}.attention.{name}", size, message, (f"{LENGTH}: {size + 1}",))


def warn_of_unused_rope(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Rotary positions have no effect where no layer has them."""
    model, layers = spec.model, spec.model.layers
    kinds = (*layers.leading, *layers.pattern) if layers else ()
    if model.rope == Rope() or "rope" in (model.positions, *(kind.positions for kind in kinds)):
        return
    reason = f"the layers have {quote_field(f'{MODEL}.positions', model.positions)}"
    yield Problem(f"{MODEL}.rope", None, has_no_effect(reason), (f"{MODEL}.positions: rope",))


_HEADS = ("model.numHeads", "model.numKvHeads", "model.headDim", "model.embedDim", "model.latentAttention")


def check_matrix_init(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`init.matrices.std` excludes `init.matrices.scale`."""
    options = spec.model.init.matrices
    if options.std is not None and options.scale is not None:
        other = quote_field(f"{MODEL}.init.matrices.std", options.std)
        message = f"must not be set with {other}, which is the standard deviation of all matrices. Remove one of both."
        yield Problem(f"{MODEL}.init.matrices.scale", options.scale, message)


RULES = (
    Rule(("model.numHeads", "model.numKvHeads"), check_heads),
    Rule(("model.headDim", "model.positions"), check_head_dim),
    Rule(("model.headDim", "model.embedDim", "model.numHeads", "model.latentAttention"), check_default_head_dim),
    Rule(("model.latentAttention", "model.numKvHeads", "model.headDim", "model.attention"), check_latent_heads),
    Rule(("model.latentAttention",), check_latent_positions),
    Rule(("model.attention.bias",), check_attention_bias),
    Rule(("model.positions", "model.maxPositions", "training.sequenceLength"), check_learned_positions),
    Rule(("model.positions", "model.attention"), check_norms_of_rotated_heads),
    Rule(("model.rope", "model.layers", *_HEADS), check_ropes),
    Rule(("model.mlp",), check_mlp),
    Rule(("model.init",), check_matrix_init),
)
WARNINGS = (
    Rule(("model.attention", "training.sequenceLength"), warn_of_long_windows),
    Rule(("model.rope", "model.positions", "model.layers"), warn_of_unused_rope),
)
