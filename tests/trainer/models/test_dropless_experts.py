"""Experts without capacity: the loss and gradients of experts with a slot for each token, on every layout."""

from typing import Any

import jax
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.training import ONE, losses, spec_with
from tests.trainer.models.test_experts import LAYOUTS
from tests.trainer.models.test_kernels import TENSOR, describe, differentiate, errors, plain, prepare
from trainingjob_api.presets.merge import merge_preset
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.world import Layout
from trainingjob_trainer.state import Signal

ALL_SLOTS = {"count": 4, "perToken": 2, "capacityFactor": 2, "groupLength": 4, "shared": 1}
DROPLESS = ALL_SLOTS | {"dispatch": "dropless", "capacityFactor": 0.1}
SPEC = describe(model__experts=DROPLESS)
MESH = LAYOUTS["fsdp 2, expert 2, tensor 2, accumulation 2"]
KINDS: dict[str, dict[str, Any]] = {
    "one of four": {"model__experts": {"perToken": 1}},
    "all": {"model__experts": {"perToken": 4, "capacityFactor": 1}},
    "biases": {"model__mlp": {"bias": True}, "model__experts": {"routerBias": True}},
    "weighted inputs": {"model__experts": {"weighting": "input", "scoring": "sigmoid"}},
    "ungated": {"model__mlp": {"gated": False, "activation": "gelu"}},
    "layers computed again": {"memory__remat": "full"},
}


def with_experts(experts: dict[str, Any], changes: dict[str, Any]) -> Any:
    own = changes.get("model__experts", {})
    return describe(**changes | {"model__experts": experts | own})


@pytest.mark.thorough
@each("layout", LAYOUTS, "fsdp 2, expert 2, tensor 2, accumulation 2")
def test_a_step_drops_no_token_on_any_layout(layout: Layout) -> None:
    want = plain(describe(model__experts=ALL_SLOTS).model_dump_json())

    assert errors(differentiate(SPEC, layout), want) == {}


@pytest.mark.thorough
@each("changes", KINDS, "biases")
def test_experts_of_each_kind_are_those_with_a_slot_for_each_token(changes: dict[str, Any]) -> None:
    want = plain(with_experts(ALL_SLOTS | {"capacityFactor": 4}, changes).model_dump_json())

    assert errors(differentiate(with_experts(DROPLESS, changes), MESH), want) == {}


@pytest.mark.thorough
def test_a_small_qwen_3_with_experts_trains_without_capacity() -> None:
    size = {"vocabSize": 272, "embedDim": 16, "numLayers": 2, "numHeads": 4, "numKvHeads": 2, "headDim": 8}
    section = {"preset": "qwen3-30b-a3b", **size, "experts": {"count": 8, "perToken": 2, "mlpDim": 12}}
    slots, dropless = (
        spec_with(model=merge_preset(section | {"experts": section["experts"] | dispatch}, PRESETS)[0])
        for dispatch in ({"capacityFactor": 4.0}, {"dispatch": "dropless"})
    )

    assert dropless.model.experts
    assert dropless.model.experts.dispatch == "dropless"
    assert dropless.model.attention.query_key_norm == "perHead"
    found = losses(dropless, MESH)
    assert found == pytest.approx(losses(slots, ONE), abs=1e-4)
    assert found[-1] < found[0]


@pytest.mark.slow
def test_an_evaluation_sums_the_same_loss() -> None:
    totals = []
    for layout, experts in ((ONE, ALL_SLOTS), (LAYOUTS["data 2 over slices, expert 4"], DROPLESS)):
        steps, state, batch = prepare(describe(model__experts=experts), layout)
        held_out = batch._replace(target_bytes=batch.targets)
        totals.append(jax.jit(steps.evaluate)(state.params, held_out, steps.signals(Signal.NONE))[0].loss)

    assert float(totals[1]) == pytest.approx(float(totals[0]), rel=1e-5)


@pytest.mark.slow
def test_results_that_are_not_summed_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    want = plain(describe(model__experts=ALL_SLOTS).model_dump_json())
    monkeypatch.setattr(jax.lax, "psum", lambda array, _: array)

    assert "loss" in errors(differentiate(SPEC, TENSOR), want)
