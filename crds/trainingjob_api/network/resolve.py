"""From the model section of a spec to the network that it describes."""

from dataclasses import dataclass
from functools import lru_cache

from trainingjob_api.network.attention import Attention
from trainingjob_api.network.mlp import GatedMlp
from trainingjob_api.network.network import Block, Embedding, Group, Head, Network
from trainingjob_api.network.norm import RmsNorm
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.model import Model


@dataclass(frozen=True)
class HeadSizes:
    """Numbers of heads, and the width of each, with the defaults that depend on other fields."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def resolve_num_kv_heads(model: Model) -> int:
    """Return the number of key and value heads: by default that of the query heads."""
    return model.num_kv_heads or model.num_heads


def resolve_heads(model: Model) -> HeadSizes:
    """Return the heads of a model. A default width is rounded down; validation rejects one that is not exact."""
    head_dim = model.head_dim or max(model.embed_dim // model.num_heads, 1)
    return HeadSizes(model.num_heads, resolve_num_kv_heads(model), head_dim)


@lru_cache(maxsize=64)  # a strategy search calls this thousands of times
def resolve(model: Model) -> Network:
    """Return the network of a model: one group of equal layers."""
    width, hidden, experts = model.embed_dim, model.mlp_dim, model.experts
    norm, heads = RmsNorm(width, model.norm.epsilon), resolve_heads(model)
    block = Block(
        attention_norm=norm,
        attention=Attention(
            width,
            heads.num_heads,
            heads.num_kv_heads,
            heads.head_dim,
            model.rope.theta,
            RmsNorm(heads.head_dim, model.norm.epsilon) if model.attention.query_key_norm else None,
        ),
        mlp_norm=norm,
        mlp=RoutedMlp(width, hidden, experts) if experts else GatedMlp(width, hidden),
    )
    return Network(
        embedding=Embedding(model.vocab_size, width, model.init.std),
        groups=(Group("layers", (block,), model.num_layers),),
        norm=norm,
        head=None if model.tie_embeddings else Head(width, model.vocab_size),
    )
