"""From the model section of a spec to the network that it describes."""

from functools import lru_cache

from trainingjob_api.network.attention import GroupedQueryAttention
from trainingjob_api.network.mlp import GatedMlp
from trainingjob_api.network.network import Block, Embedding, Group, Head, Network
from trainingjob_api.network.norm import RmsNorm
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.spec.model import Model


@lru_cache(maxsize=64)  # a strategy search calls this thousands of times
def resolve(model: Model) -> Network:
    """Return the network of a model: one group of equal layers."""
    width, hidden, experts = model.embed_dim, model.mlp_dim, model.experts
    norm = RmsNorm(width, model.norm.epsilon)
    block = Block(
        attention_norm=norm,
        attention=GroupedQueryAttention(width, model.heads, model.attention, model.rope, model.norm),
        mlp_norm=norm,
        mlp=RoutedMlp(width, hidden, experts) if experts else GatedMlp(width, hidden),
    )
    return Network(
        embedding=Embedding(model.vocab_size, width, model.init.std),
        groups=(Group("layers", (block,), model.num_layers),),
        norm=norm,
        head=None if model.tie_embeddings else Head(width, model.vocab_size),
    )
