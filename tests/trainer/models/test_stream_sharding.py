"""The residual stream, sharded over `tensor` along the sequence: the loss and gradients of one device."""

from typing import Any

import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.meshes import MODELS, UNBALANCED
from tests.support.trainer.tiny import make_layout
from tests.trainer.models.test_gradients import find_sums
from tests.trainer.models.test_kernels import describe, differentiate, errors, plain, trace
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram

SHARDED = {"parallelism__shardStreamOverTensor": True}
TENSOR = {name: layout for name, layout in LAYOUTS.items() if layout.ici.tensor > 1}
TWO = make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2), rows_per_shard=4)
VARIANTS: dict[str, dict[str, Any]] = {
    "windows, both norms": {"model": MODELS["windows"]},
    "latent attention, dropless experts": {"model": UNBALANCED},
    "experts with capacity": {"model__experts": {"count": 4, "perToken": 2, "groupLength": 8}},
    "layers computed again": {"memory__remat": "full"},
    "logits in chunks": {"memory__lossChunks": 3},
    "a ring": {"parallelism__context": {"exchange": "ring"}},
}


@pytest.mark.thorough
@each("layout", TENSOR, "data 2, fsdp 2, tensor 2, accumulation 2")
def test_a_step_with_a_sharded_stream_is_that_of_one_device(layout: Layout) -> None:
    want = plain(describe().model_dump_json())

    assert errors(differentiate(describe(**SHARDED), layout), want) == {}


@each("changes", VARIANTS)
def test_the_stream_of_other_models_is_sharded(changes: dict[str, Any]) -> None:
    layout = LAYOUTS["context 4, tensor 2, accumulation 2"] if "a ring" in str(changes) else TWO
    want = plain(describe(**changes).model_dump_json())

    assert errors(differentiate(describe(**changes, **SHARDED), layout), want) == {}


@pytest.mark.thorough
@each("remat", {"full": "full", "none": "none"}, "none")
def test_a_device_saves_its_share_of_the_stream(remat: str) -> None:
    layout = make_layout(ici=AxisDegrees(tensor=2), rows_per_shard=8)
    temporaries = []
    for changes in ({}, SHARDED):
        step, arguments = trace(
            describe(memory__remat=remat, training__sequenceLength=128, model__numLayers=32, **changes), layout
        )
        compiled = step.lower(*arguments).compile()
        temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
        assert list(find_unordered_collectives(HloProgram(compiled.as_text()))) == []

    width, tokens, layers = 16, 8 * 128, 32
    saved = layers * tokens * width * 4
    assert temporaries[0] - temporaries[1] > 0.3 * saved


@pytest.mark.thorough
def test_gradients_are_not_summed_in_bfloat16() -> None:
    step, arguments = trace(describe(precision__compute="bfloat16", **SHARDED), TWO)

    assert list(find_sums(step.trace(*arguments).jaxpr.jaxpr, num_stages=1, length=16)) == []


@pytest.mark.thorough
def test_each_device_normalizes_its_share_of_the_stream_before_the_logits() -> None:
    layout = make_layout(ici=AxisDegrees(tensor=2), rows_per_shard=8)
    step, arguments = trace(describe(memory__lossChunks=3, **SHARDED), layout)
    lines = step.lower(*arguments).as_text().splitlines()

    # [T, S, R, L, D]: the input of the norm and the gradient of its result
    sharded = [line for line in lines if "sharding_constraint" in line and "tensor<1x1x8x16x16xf32>" in line]
    assert len([line for line in sharded if '"tensor"' in line]) >= 2
