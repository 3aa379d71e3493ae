"""The choice of the attention kernel, and the costs of each."""

from dataclasses import replace
from typing import Any

import pytest

from trainingjob_api.network.attention_blocks import CausalScope, count_pairs, find_block
from trainingjob_api.network.attention_costs import ScoreShapes, count_score_costs
from trainingjob_api.network.attention_kernel import AttentionCase, KernelName, choose_attention
from trainingjob_api.network.part import Shard
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.model import Model

SHAPES = ScoreShapes(heads=4, kv_heads=2, key_width=24, value_width=16, scope=CausalScope())
MODEL = Model(vocab_size=96, embed_dim=32, mlp_dim=48, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8)


CASE = AttentionCase("cpu", length=8192, context=1, compute_bytes=2, key_width=128, value_width=128)


@pytest.mark.parametrize(
    ("accelerator", "length", "name"),
    [
        ("cpu", 255, "plain"),
        ("cpu", 256, "chunked"),
        ("my-cluster", 4095, "plain"),
        ("my-cluster", 4096, "chunked"),
        ("tpu-v5e", 4095, "plain"),
        ("tpu-v5e", 4096, "splash"),
        ("nvidia-h100", 511, "plain"),
        ("nvidia-h100", 512, "cudnn"),
    ],
)
def test_the_kernel_follows_from_accelerator_and_length(accelerator: str, length: int, name: str) -> None:
    choice = choose_attention(replace(CASE, accelerator=accelerator, length=length))

    assert (choice.part, choice.name) == ("attention", name)


def test_the_reason_names_what_keeps_kernels_from_an_added_accelerator() -> None:
    hints = {
        name: "`nvidia-` nor `tpu-`" in choose_attention(replace(CASE, accelerator=name, length=128)).reason
        for name in ("my-cluster", "nvidia-l40s", "tpu-v9", "cpu", "")
    }

    assert hints == {"my-cluster": True, "nvidia-l40s": False, "tpu-v9": False, "cpu": False, "": False}


OBSTACLES: dict[str, tuple[str, dict[str, Any], str]] = {
    "float32": ("nvidia-h100", {"compute_bytes": 4}, "bfloat16 only"),
    "soft cap": ("nvidia-h100", {"has_soft_cap": True}, "no soft cap"),
    "sinks": ("nvidia-h100", {"has_sinks": True}, "no sinks"),
    "chunks": ("nvidia-h100", {"scope": CausalScope(chunk=1024)}, "no chunks"),
    "documents": ("nvidia-h100", {"has_documents": True}, "documents"),
    "sharded sequences": ("nvidia-h100", {"context": 2}, "`context`"),
    "wide heads": ("nvidia-h100", {"key_width": 264}, "at most 256"),
    "odd heads": ("nvidia-h100", {"key_width": 20}, "multiple of 8"),
    "odd values": ("nvidia-h100", {"value_width": 20}, "multiple of 8"),
    "wide heads before Hopper": ("nvidia-a100-80gb", {"key_width": 192}, "at most 128"),
    "wide heads of a GPU that is not built in": ("nvidia-a10g", {"key_width": 256}, "at most 128"),
    "narrow values before Hopper": ("nvidia-a100-80gb", {"value_width": 64}, "as wide as keys"),
    "heads of latent attention": ("nvidia-h100", {"key_width": 192}, "as wide as keys"),
    "chunks with a window": ("tpu-v5e", {"scope": CausalScope(chunk=1024, window=128)}, "no chunks with a window"),
    "odd shards": ("tpu-v5e", {"context": 3, "length": 128 * 64}, "multiple of 128"),
}


@pytest.mark.parametrize("obstacle", OBSTACLES.values(), ids=OBSTACLES)
def test_what_the_accelerator_s_kernel_cannot_compute_runs_in_chunks(
    obstacle: tuple[str, dict[str, Any], str],
) -> None:
    accelerator, changes, reason = obstacle
    choice = choose_attention(replace(CASE, accelerator=accelerator, **changes))

    assert choice.name == "chunked"
    assert reason in choice.reason


WIDE_HEADS = {"key_width": 256, "value_width": 256}
ABILITIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "window": ("nvidia-h100", {"scope": CausalScope(window=1024)}, "cudnn"),
    "wide heads on an H200": ("nvidia-h200", WIDE_HEADS, "cudnn"),
    "wide heads on a B200": ("nvidia-b200", WIDE_HEADS, "cudnn"),
    "wide heads on a GB200": ("nvidia-gb200", WIDE_HEADS, "cudnn"),
    "narrow heads of a GPU that is not built in": ("nvidia-a10g", {}, "cudnn"),
    "everything on a TPU": (
        "tpu-v5p",
        {
            "compute_bytes": 4,
            "has_soft_cap": True,
            "has_sinks": True,
            "has_documents": True,
            "context": 4,
            "key_width": 192,
            "scope": CausalScope(chunk=1024),
        },
        "splash",
    ),
}


@pytest.mark.parametrize("ability", ABILITIES.values(), ids=ABILITIES)
def test_the_accelerator_s_kernel_computes_the_options_that_it_knows(
    ability: tuple[str, dict[str, Any], str],
) -> None:
    accelerator, changes, name = ability

    assert choose_attention(replace(CASE, accelerator=accelerator, **changes)).name == name


def test_a_network_on_an_accelerator_has_the_same_tensors_and_other_kernels() -> None:
    network, shard = resolve(MODEL), Shard(1024, 2, {})
    on_cpu = network.on("cpu")

    assert on_cpu.tensors == network.tensors
    assert [one.name for one in on_cpu.choose_kernels(shard)] == ["chunked"]
    assert [one.name for one in network.choose_kernels(shard)] == ["plain"]


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


@pytest.mark.parametrize(("kernel", "backward_matmuls"), [("chunked", 3 * 24 + 2 * 16), ("cudnn", 3 * 24 + 2 * 16)])
def test_kernels_compute_the_scores_again(kernel: KernelName, backward_matmuls: int) -> None:
    costs = count_score_costs(kernel, SHAPES, Shard(4096, 2, {}))

    assert costs.backward_flops * (24 + 16) == costs.forward_flops * backward_matmuls


def test_splash_attention_computes_scores_and_their_gradients_for_queries_and_for_keys() -> None:
    costs = count_score_costs("splash", SHAPES, Shard(4096, 2, {}))

    assert costs.backward_flops * (24 + 16) == costs.forward_flops * (4 * 24 + 3 * 16)
