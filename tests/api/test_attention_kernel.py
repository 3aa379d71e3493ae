"""The choice of the attention kernel, and the costs of each."""

import pytest

from trainingjob_api.network.attention_blocks import CausalScope, count_pairs, find_block
from trainingjob_api.network.attention_costs import ScoreShapes, count_score_costs
from trainingjob_api.network.attention_kernel import choose_attention
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.model import Model

SHAPES = ScoreShapes(heads=4, kv_heads=2, key_width=24, value_width=16, scope=CausalScope())
MODEL = Model(vocab_size=96, embed_dim=32, mlp_dim=48, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8)


@pytest.mark.parametrize(
    ("accelerator", "length", "name"),
    [
        ("cpu", 255, "plain"),
        ("cpu", 256, "chunked"),
        ("tpu-v5e", 4095, "plain"),
        ("tpu-v5e", 4096, "chunked"),
        ("", 4096, "chunked"),
    ],
)
def test_long_sequences_are_attended_in_chunks(accelerator: str, length: int, name: str) -> None:
    choice = choose_attention(accelerator, length)

    assert (choice.part, choice.name) == ("attention", name)
    assert f"{length:,} tokens" in choice.reason


def test_a_network_on_an_accelerator_has_the_same_tensors_and_other_kernels() -> None:
    network = resolve(MODEL)
    on_cpu = network.on("cpu")

    assert on_cpu.tensors == network.tensors
    assert [one.name for one in on_cpu.choose_kernels(1024)] == ["chunked"]
    assert [one.name for one in network.choose_kernels(1024)] == ["plain"]


def test_plain_attention_computes_and_saves_all_scores() -> None:
    costs = count_score_costs("plain", SHAPES, Shard(1024, 2, {"context": 2}))

    assert costs.forward_flops == 2 * 4 * 1024 * (24 + 16)
    assert costs.backward_flops == 2 * costs.forward_flops
    assert costs.saved_bytes == 4 * 1024 * (4 + 2)
    assert costs.backward_bytes == 4 * 1024 * 4
    assert costs.workspace_bytes == 0


@pytest.mark.parametrize("context", [1, 4])
@pytest.mark.parametrize("scope", [CausalScope(), CausalScope(window=512), CausalScope(chunk=1024)])
def test_chunked_attention_computes_the_pairs_of_blocks_of_a_shard(scope: CausalScope, context: int) -> None:
    length, queries = 4096, 4096 // context
    shapes = ScoreShapes(4, 2, 24, 16, scope)
    block = find_block(queries, scope)
    scores = 4 * count_pairs(length, context, block, scope) * block * block // queries

    costs = count_score_costs("chunked", shapes, Shard(length, 2, {"context": context}))

    assert costs.forward_flops == 2 * scores * (24 + 16)
    assert costs.backward_flops == 2 * scores * (3 * 24 + 2 * 16)


def test_the_memory_of_chunked_attention_does_not_grow_with_the_length() -> None:
    short, long = (count_score_costs("chunked", SHAPES, Shard(length, 2, {})) for length in (8192, 65_536))

    assert long.saved_bytes == short.saved_bytes == 4 * 4
    assert long.workspace_bytes <= short.workspace_bytes
    assert long.backward_bytes == short.backward_bytes == 0


def test_a_part_counts_the_kernel_of_its_accelerator() -> None:
    shard = Shard(2048, 2, {"context": 1})
    plain, chunked = (next(iter(resolve(MODEL).on(accelerator).blocks)).attention for accelerator in ("tpu-v5e", "cpu"))

    assert plain.saved_bytes(shard) - chunked.saved_bytes(shard) == 4 * (2048 * (4 + 2) - 4)
    assert plain.flops(shard).forward > chunked.flops(shard).forward
    assert chunked.workspace_bytes(shard) > plain.workspace_bytes(shard) == 0
    assert plain.backward_bytes(shard) > chunked.backward_bytes(shard) == 0
