"""Latent attention: its tensors and its costs."""

from typing import Any

from trainingjob_api.network.attention import Attention, HeadSizes
from trainingjob_api.network.latent_attention import Latent, LatentAttention
from trainingjob_api.network.norm import Norm
from trainingjob_api.network.part import Part, Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.rope import Rope
from trainingjob_api.spec.model import Model

LATENT = Latent(query_rank=24, key_value_rank=16, rope_dim=4, no_rope_dim=8, value_dim=6)


def make_part(**changes: Any) -> LatentAttention:
    return LatentAttention(32, 4, LATENT.model_copy(update=changes), Attention(), Rope(), Norm())


def shard(**degrees: int) -> Shard:
    return Shard(64, 2, {"context": 1, **degrees})


def test_queries_are_projected_once_without_a_latent_vector_of_their_own() -> None:
    shapes = {tensor.name: tensor.shape for tensor in make_part().tensors}
    direct = {tensor.name: tensor.shape for tensor in make_part(query_rank=None).tensors}

    assert shapes == {
        "query_down": (32, 24),
        "query_up": (24, 4, 12),
        "key_value_down": (32, 16),
        "rope_key": (32, 4),
        "key": (16, 4, 8),
        "value": (16, 4, 6),
        "out": (4, 6, 32),
        "query_norm.scale": (24,),
        "key_value_norm.scale": (16,),
    }
    assert {name for name in shapes if name not in direct} == {"query_down", "query_up", "query_norm.scale"}
    assert direct["query"] == (32, 4, 12)


def test_scores_cost_the_width_of_keys_and_of_values() -> None:
    part = make_part()
    matrices = sum(tensor.size for tensor in part.tensors if tensor.is_matrix)

    assert part.flops(shard()).forward == 2 * matrices + 2 * 64 * 4 * (12 + 6)
    assert part.flops(shard()).backward == 2 * part.flops(shard()).forward
    assert part.causal_flops(64) == 6 * 64 * 4 * (12 + 6) // 2


def test_the_heads_of_a_device_determine_its_memory() -> None:
    whole, half = (make_part().saved_bytes(shard(tensor=ways)) for ways in (1, 2))
    shared = 2 * 4 + (24 + 16) * (3 * 4 + 2)  # the rotated key, and the norms of the latent vectors

    assert half - shared == (whole - shared) // 2
    assert make_part().backward_bytes(shard(tensor=2)) == 2 * 64 * 4


def test_gathered_keys_and_values_are_those_of_all_heads() -> None:
    sent, received = make_part().traffic(64).context_features, make_part().saved_bytes(shard(context=2))

    assert 2 * sent == 4 * (12 + 6)
    assert received - make_part().saved_bytes(shard()) == 2 * 4 * (12 + 6)


def test_the_scale_is_that_of_the_whole_head() -> None:
    given = LatentAttention(32, 4, LATENT, Attention(scale=0.5), Rope(), Norm())

    assert make_part().scale == 12**-0.5
    assert given.scale == 0.5


def test_a_model_with_latent_attention_needs_no_width_of_heads() -> None:
    dims: dict[str, Any] = {"vocab_size": 96, "embed_dim": 30, "mlp_dim": 48, "num_layers": 2, "num_heads": 4}
    model = Model(**dims, latent_attention=LATENT)
    (block,) = resolve(model).blocks
    part: Part = block.attention

    assert isinstance(part, LatentAttention)
    assert {tensor.name: tensor.shape for tensor in part.tensors}["query_up"] == (24, 4, 12)
    assert model.heads == HeadSizes(num_heads=4, num_kv_heads=4, head_dim=12)
