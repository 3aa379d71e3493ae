"""From the model section of a spec to the network that it describes."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby

from trainingjob_api.network.adapt import ADAPTER_PATTERNS, adapt
from trainingjob_api.network.attention import GroupedQueryAttention
from trainingjob_api.network.block import Block
from trainingjob_api.network.embedding import Embedding, Head
from trainingjob_api.network.freeze import freeze
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.layers import LayerKind, arrange
from trainingjob_api.network.matrix_init import InitRule, resolve_init
from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.multi_token_prediction import PredictionModules
from trainingjob_api.network.network import Group, Network
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.quantize import quantize
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.precision import Quantization


def resolve_network(spec: TrainingJobSpec) -> Network:
    """Return the network of a job: with its adapters, and with frozen tensors and quantized matmuls marked."""
    return _resolve_job(spec.model, spec.lora, spec.optimizer.trainable, spec.precision.quantization)


@lru_cache(maxsize=64)
def _resolve_job(
    model: Model, lora: Lora | None, trainable: tuple[str, ...], quantization: Quantization | None
) -> Network:
    network = resolve(model)
    network = quantize(network, quantization) if quantization else network
    return freeze(adapt(network, lora), ADAPTER_PATTERNS) if lora else freeze(network, trainable)


@lru_cache(maxsize=64)  # a strategy search calls this thousands of times
def resolve(model: Model) -> Network:
    """Return the network of a model."""
    return Network(
        embedding=Embedding(
            model.vocab_size,
            model.embed_dim,
            model.init.std,
            model.embedding_scale,
            model.max_positions if model.positions == "learned" else None,
            model.dropout.embedding,
        ),
        groups=tuple(_resolve_groups(model)),
        norm=HiddenNorm(model.embed_dim, model.norm),
        head=Head(model.embed_dim, model.vocab_size, model.tie_embeddings, model.logits, _resolve_init(model)),
        prediction=_resolve_prediction(model),
    )


def _resolve_init(model: Model) -> InitRule:
    """Return the rule of the initial values of matrices."""
    return resolve_init(model.init.matrices, model.num_layers)


def _resolve_prediction(model: Model) -> PredictionModules | None:
    """Return the modules that predict further tokens. Their layer is of the kind of the last layer."""
    if model.multi_token_prediction is None:
        return None
    block = _resolve_block(model, arrange(model.layers, model.num_layers).kinds[-1])
    norm = HiddenNorm(model.embed_dim, model.norm)
    return PredictionModules(block, norm, model.multi_token_prediction, _resolve_init(model))


def _resolve_groups(model: Model) -> Iterator[Group]:
    """Yield the leading layers, those that repeat a pattern, and the beginning of a pattern that does not fit again."""
    layers = arrange(model.layers, model.num_layers)
    leading, pattern, trailing = (
        tuple(_resolve_block(model, kind) for kind in kinds)
        for kinds in (layers.leading, layers.pattern, layers.trailing)
    )
    yield from _group_equal("leading", leading)
    if layers.repeats:
        yield Group("layers", pattern, layers.repeats)
    yield from _group_equal("trailing", trailing)


def _group_equal(name: str, blocks: Sequence[Block]) -> Iterator[Group]:
    """Yield a group for each run of equal blocks."""
    for position, (block, run) in enumerate(groupby(blocks)):
        yield Group(f"{name}_{position}", (block,), len(list(run)))


def _resolve_block(model: Model, kind: LayerKind) -> Block:
    """Return a layer of a kind."""
    norm, placement = HiddenNorm(model.embed_dim, model.norm), model.norm.placement
    before, after = norm if placement != "post" else None, norm if placement != "pre" else None
    return Block(
        attention=_resolve_attention(model, kind),
        mlp=_resolve_mlp(model, kind),
        attention_norm=before,
        mlp_norm=before,
        attention_output_norm=after,
        mlp_output_norm=after,
        dropout=model.dropout.residual,
    )


def _resolve_attention(model: Model, kind: LayerKind) -> GroupedQueryAttention | LatentAttention:
    """Return the attention of a layer."""
    positions = kind.positions or model.positions
    rope = (kind.rope or model.rope) if positions == "rope" else None
    options = model.attention
    if kind.attention:
        window = options.window if kind.attention == "window" else None
        chunk = options.chunk if kind.attention == "chunk" else None
        options = options.model_copy(update={"window": window, "chunk": chunk})
    if rope:
        options = options.model_copy(update={"temperature_tuning": None})
    elif options.query_key_norm == "l2":  # it normalizes rotated queries and keys
        options = options.model_copy(update={"query_key_norm": None})
    width, init = model.embed_dim, _resolve_init(model)
    if model.latent_attention:
        return LatentAttention(width, model.num_heads, model.latent_attention, options, rope, model.norm, init=init)
    return GroupedQueryAttention(width, model.heads, options, rope, model.norm, init=init)


def _resolve_mlp(model: Model, kind: LayerKind) -> DenseMlp | RoutedMlp:
    """Return the MLP or the experts of a layer."""
    experts = model.experts if kind.feed_forward != "dense" else None
    if experts is None:
        return DenseMlp(model.embed_dim, model.mlp_dim, model.mlp, _resolve_init(model))
    return RoutedMlp(model.embed_dim, experts.mlp_dim or model.mlp_dim, experts, model.mlp, _resolve_init(model))
