"""Attention block by block inside the sharded step: the loss and gradients of plain attention, on every layout."""

import re
from typing import Any

import pytest

from tests.support.trainer.cases import each
from tests.trainer.models.test_gradients import find_sums
from tests.trainer.models.test_kernels import describe, differentiate, errors, plain, trace
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.network import attention_kernel
from trainingjob_api.world import Layout
from trainingjob_trainer.kernels import splash_attention

LENGTH = 256
"""Four blocks of 64 tokens. With `context` of degree 4, a device has the queries of one block."""
CHUNKED = {"training__sequenceLength": LENGTH}
PLAIN = CHUNKED | {"slices__accelerator": "tpu-v5e"}  # a network of this length runs plain attention there
VARIANTS: dict[str, dict[str, Any]] = {
    "one key head": {"model__numKvHeads": 1},
    "layers computed again": {"memory__remat": "full"},
}


@pytest.mark.thorough
@each(
    "layout",
    LAYOUTS,
    "context 4, tensor 2, accumulation 2",
    "data 2 over slices, 2 stages, context 2, accumulation 2",
)
def test_a_step_with_chunked_attention_is_that_with_plain_attention(layout: Layout) -> None:
    want = plain(describe(**PLAIN).model_dump_json())

    assert errors(differentiate(describe(**CHUNKED), layout), want) == {}


@each("changes", VARIANTS)
def test_chunked_attention_of_other_models_is_plain_attention(changes: dict[str, Any]) -> None:
    want = plain(describe(**PLAIN, **changes).model_dump_json())

    layout = LAYOUTS["accumulation 4, fsdp 2"]
    assert errors(differentiate(describe(**CHUNKED, **changes), layout), want) == {}


@pytest.mark.thorough
@each("layout", LAYOUTS, "data 2 over slices, 2 stages, context 2, accumulation 2")
def test_a_step_with_splash_attention_is_that_with_plain_attention(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    if layout.ici.context == 4:
        pytest.skip("splash attention needs 128 tokens on each device")
    want = plain(describe(**PLAIN).model_dump_json())
    monkeypatch.setattr(attention_kernel, "MIN_CHUNKED_LENGTH", LENGTH)
    monkeypatch.setattr(splash_attention, "INTERPRET", True)

    assert errors(differentiate(describe(**PLAIN), layout), want) == {}


@pytest.mark.thorough
@pytest.mark.usefixtures("for_tpu")
@each("layout", LAYOUTS, "data 2 over slices, 2 stages, context 2, accumulation 2")
def test_a_step_with_splash_attention_lowers_for_a_tpu(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    if layout.ici.context == 4:
        pytest.skip("splash attention needs 128 tokens on each device")
    monkeypatch.setattr(attention_kernel, "MIN_CHUNKED_LENGTH", LENGTH)
    step, arguments = trace(describe(**PLAIN), layout)

    lowered = step.trace(*arguments).lower(lowering_platforms=("tpu",)).as_text()
    assert len(re.findall("@tpu_custom_call", lowered)) == 3  # forward, and the gradients of queries and of keys


@pytest.mark.thorough
@each("layout", LAYOUTS, "2 stages, fsdp 2, tensor 2, 4 microbatches", "data 2 over slices, fsdp 4")
def test_a_step_with_cudnn_attention_lowers_for_a_gpu(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    if layout.ici.context > 1:
        pytest.skip("cuDNN does not shard queries")
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    spec = describe(training__sequenceLength=512, slices__accelerator="nvidia-h100", precision__compute="bfloat16")
    step, arguments = trace(spec, layout)

    lowered = step.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()
    assert len(re.findall("@__cudnn", lowered)) == 2  # forward and backward


@pytest.mark.thorough
def test_a_step_with_latent_attention_lowers_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX passes no values to cuDNN that are narrower than keys."""
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91000)
    latent = {"keyValueRank": 16, "ropeDim": 8, "noRopeDim": 16, "valueDim": 16}
    model = {"model__numKvHeads": None, "model__headDim": None, "model__latentAttention": latent}
    gpu = {"slices__accelerator": "nvidia-h100", "precision__compute": "bfloat16"}
    step, arguments = trace(describe(training__sequenceLength=512, **model, **gpu), LAYOUTS["one device"])

    assert "@__cudnn" not in step.trace(*arguments).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize(("changes", "has_scores"), [(PLAIN, True), (CHUNKED, False)])
def test_only_plain_attention_materializes_the_scores(changes: dict[str, Any], has_scores: bool) -> None:
    step, arguments = trace(describe(**changes), LAYOUTS["one device"])

    assert (f"x{LENGTH}x{LENGTH}xf32" in step.lower(*arguments).as_text()) == has_scores


def test_the_gradients_of_shared_keys_are_not_summed_in_bfloat16() -> None:
    layout = LAYOUTS["context 4, tensor 2, accumulation 2"]
    step, arguments = trace(describe(**CHUNKED, precision__compute="bfloat16"), layout)

    assert list(find_sums(step.trace(*arguments).jaxpr.jaxpr, num_stages=1, length=LENGTH)) == []
