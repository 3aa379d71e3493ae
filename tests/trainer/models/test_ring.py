"""Rings inside the sharded step: the loss and gradients of gathered keys, on every layout."""

from typing import Any

import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.meshes import MODELS, UNBALANCED
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, spec_with
from tests.trainer.models.test_gradients import find_sums
from tests.trainer.models.test_kernels import describe, differentiate, errors, plain, trace
from tests.trainer.models.test_sharded_model import pack
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.data_order import find_unordered_collectives
from trainingjob_trainer.hlo_analysis.parser import HloProgram

RING = {"parallelism__context": {"exchange": "ring"}}
CONTEXT = {name: layout for name, layout in LAYOUTS.items() if layout.ici.context > 1}
TWO = make_layout(devices_per_host=4, ici=AxisDegrees(context=2, tensor=2), rows_per_shard=8)
EXPERTS = {"count": 4, "perToken": 2, "capacityFactor": 0.75, "groupLength": 4}
VARIANTS: dict[str, dict[str, Any]] = {
    "windows": {"model": MODELS["windows"]},
    "latent attention": {"model": UNBALANCED},
    "experts with capacity": {"model__experts": EXPERTS},
    "learned positions": {"model__positions": "learned", "model__maxPositions": 16},
    "layers computed again": {"memory__remat": "full"},
    "logits in chunks": {"memory__lossChunks": 3},
    "chunks, sinks and positions": {
        "model__attention": {
            "chunk": 6,
            "sinks": True,
            "temperatureTuning": {"length": 4},
        },
        "model__layers": {"pattern": [{"positions": "none"}]},
    },
}


@pytest.mark.thorough
@each("layout", CONTEXT, "data 2 over slices, fsdp 2, context 2")
def test_a_step_with_a_ring_is_that_of_one_device(layout: Layout) -> None:
    want = plain(describe().model_dump_json())

    assert errors(differentiate(describe(**RING), layout), want) == {}


@pytest.mark.thorough
@each("changes", VARIANTS, "chunks, sinks and positions")
def test_a_ring_of_other_models_is_one_device(changes: dict[str, Any]) -> None:
    want = plain(describe(**changes).model_dump_json())

    assert errors(differentiate(describe(**changes, **RING), TWO), want) == {}


@pytest.mark.slow
def test_documents_of_a_sequence_stay_apart_in_a_ring() -> None:
    totals = []
    for spec, layout in ((spec_with(), ONE), (spec_with(**RING), TWO)):
        run = Run(spec, layout)
        totals.append(float(run.evaluate(run.state.params, pack(run.batch(1)))[0]))

    assert totals[1] == pytest.approx(totals[0], rel=1e-5)


@pytest.mark.thorough
def test_the_gradients_of_keys_are_not_summed_in_bfloat16() -> None:
    step, arguments = trace(
        describe(precision__compute="bfloat16", **RING), LAYOUTS["context 4, tensor 2, accumulation 2"]
    )

    assert list(find_sums(step.trace(*arguments).jaxpr.jaxpr, num_stages=1, length=16)) == []


@pytest.mark.thorough
def test_a_ring_orders_its_collectives_and_holds_no_keys_of_the_whole_sequence() -> None:
    temporaries, holds_all = [], []
    for changes in ({}, RING):
        spec = describe(training__sequenceLength=512, **changes)
        step, arguments = trace(spec, LAYOUTS["context 4, tensor 2, accumulation 2"])
        compiled = step.lower(*arguments).compile()
        temporaries.append(compiled.memory_analysis().temp_size_in_bytes)
        assert list(find_unordered_collectives(HloProgram(compiled.as_text()))) == []
        holds_all.append("512,1,8]" in compiled.as_text())

    assert holds_all == [True, False]
    assert temporaries[1] < 0.9 * temporaries[0]
