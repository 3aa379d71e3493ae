"""Memory of the backward pass of layers that are computed again: norms and MLP are counted once, as XLA holds them."""

from typing import Any

import pytest

from e2e.benchmarks.compiler_cases import DEEP, INT8, ROUTED, TWO_OF_LLAMA, job, training
from trainingjob_api.base import AXES
from trainingjob_api.network.block import Block
from trainingjob_api.network.part import Shard
from trainingjob_api.spec.memory import Memory
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.workload import describe_workload

WIDTH, HIDDEN, BFLOAT16 = 1024, 4096, 2
"""Of the model `DEEP`."""
VALUE = WIDTH * BFLOAT16
FULL = Memory(remat="full").saved
LONG, SHORT, TENSOR = 8192, 1024, 4


def block_of(accelerator: str = "tpu-v5p", model: dict[str, Any] = DEEP, **sections: Any) -> Block:
    topology = "8" if accelerator.startswith("nvidia") else "2x2x1"
    spec = job(accelerator, topology, {}, model=model, training=training(8, LONG, 1), **sections)
    (block,) = describe_workload(spec).network.blocks
    return block


def shard(length: int = LONG, tensor: int = 1, fsdp: int = 1) -> Shard:
    return Shard(length, BFLOAT16, dict.fromkeys(AXES, 1) | {"tensor": tensor, "fsdp": fsdp})


def backward(block: Block, memory: Memory = Memory(remat="full"), **of_shard: int) -> int:  # noqa: B008
    return block.backward_bytes(shard(**of_shard), memory.saved)


def test_the_norms_of_a_layer_have_two_values_each() -> None:
    more = block_of(model=DEEP | {"norm": {"placement": "both"}})

    assert backward(more) - backward(block_of()) == 4 * VALUE


def test_tensor_shards_what_only_the_stream_needs() -> None:
    parallelism = {"ici": {"tensor": TENSOR}, "shardStreamOverTensor": True}
    sharded = block_of(parallelism=parallelism)

    assert backward(block_of(), tensor=TENSOR) - backward(sharded, tensor=TENSOR) == 2 * VALUE * 3 // 4


@pytest.mark.parametrize(("gated", "num_values"), [(True, 3), (False, 2)])
def test_a_tpu_holds_the_products_of_an_mlp_and_one_gradient(gated: bool, num_values: int) -> None:
    wide, narrow = (block_of(model=DEEP | {"mlpDim": size, "mlp": {"gated": gated}}) for size in (8192, HIDDEN))

    assert backward(wide) - backward(narrow) == num_values * HIDDEN * BFLOAT16


def test_a_tpu_holds_every_value_of_an_mlp_with_sharded_matrices() -> None:
    assert backward(block_of(), fsdp=4) - backward(block_of()) == 3 * HIDDEN * BFLOAT16


def test_a_gpu_holds_every_value_of_an_mlp() -> None:
    wide, narrow = (block_of("nvidia-h100", DEEP | {"mlpDim": size}) for size in (8192, HIDDEN))

    assert backward(wide) - backward(narrow) == 6 * HIDDEN * BFLOAT16


def test_saved_activations_are_counted_with_those_of_all_layers() -> None:
    block = block_of()
    named = {one.name: one.num_bytes for one in block.activations(shard())}
    save_query = Memory.model_validate({"remat": "custom", "save": ["query", "mlpGate"]})
    save_output = Memory.model_validate({"remat": "custom", "save": ["attentionProjection"]})

    assert backward(block) - backward(block, save_query) == named["query"] + named["mlpGate"]
    assert backward(block) == backward(block, save_output)


def test_plain_attention_and_cpus_hold_all_that_a_layer_saves() -> None:
    block = block_of()
    costs = block._on(shard(SHORT))

    assert costs.recomputed is None
    assert backward(block, length=SHORT) == costs.saved_bytes + costs.workspace_bytes


def test_int8_experts_hold_their_scaled_operands() -> None:
    dropless = ROUTED | {"experts": {"count": 8, "perToken": 2, "dispatch": "dropless"}}
    plain, scaled = (block_of(model=dropless, precision=precision) for precision in ({}, INT8))

    assert backward(scaled) - backward(plain) == 2 * 2 * 2 * 4 * 2048  # tokens, projections, numbers, bytes, width


def test_llama_3_8b_fits_at_131072_tokens_on_eight_gpus_of_80_gb() -> None:
    llama = {"model": TWO_OF_LLAMA | {"numLayers": 32}, "training": training(8, 131072, 1), "memory": {"remat": "full"}}
    totals = []
    for shards_stream in (False, True):
        parallelism = {"ici": {"tensor": 8}, "shardStreamOverTensor": shards_stream}
        (size,) = plan_job(job("nvidia-h100", "8", {}, parallelism=parallelism, **llama)).sizes
        assert size.layout
        assert size.memory
        totals.append(size.memory.total / 1e9)

    assert totals == pytest.approx([60.1, 28.2], rel=0.01)
