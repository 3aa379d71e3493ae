"""Schedules of a pipeline inside the sharded step: the loss and gradients of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.meshes import MODELS
from tests.support.trainer.tiny import make_layout
from tests.trainer.models.test_kernels import describe, differentiate, errors, plain, trace
from tests.trainer.test_step import LAYOUTS as STEP_LAYOUTS
from trainingjob_api.network.resolve import resolve
from trainingjob_api.pipeline import PipelineSchedule
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.parallelism import AxisDegrees, Pipeline
from trainingjob_api.spec.precision import Precision
from trainingjob_api.world import Layout
from trainingjob_trainer.hlo_analysis.flops import count_flops
from trainingjob_trainer.hlo_analysis.parser import HloProgram
from trainingjob_trainer.models.decoder import SplitModel

DEEP = {"model__numLayers": 4}
CIRCULAR = {"parallelism__pipeline": {"schedule": "circular"}}
LAYOUTS: dict[str, Layout] = {
    name: STEP_LAYOUTS[name]
    for name in (
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
        "data 2 over slices, 2 stages, context 2, accumulation 2",
    )
} | {
    "2 stages, 8 microbatches": make_layout(ici=AxisDegrees(stage=2), rows_per_shard=1, microbatches=8),
}
VARIANTS: dict[str, dict[str, Any]] = {
    "further tokens, chunks": {"model__multiTokenPrediction": {"depth": 2}, "memory__lossChunks": 3},
    "windows": {"model": MODELS["windows"] | {"numLayers": 8}},
    "dropless experts": {"model": MODELS["dropless experts"] | {"numLayers": 4}},
    "layers computed again, a ring": {"memory__remat": "full", "parallelism__context": {"exchange": "ring"}},
}


@pytest.mark.thorough
@each("layout", LAYOUTS, "2 stages, fsdp 2, tensor 2, 4 microbatches")
def test_a_circular_schedule_computes_the_same_step(layout: Layout) -> None:
    want = plain(describe(**DEEP).model_dump_json())

    assert errors(differentiate(describe(**DEEP, **CIRCULAR), layout), want) == {}


@each("changes", VARIANTS)
def test_a_circular_schedule_runs_other_models(changes: dict[str, Any]) -> None:
    spec = DEEP | changes if "model" not in changes else changes
    want = plain(describe(**spec).model_dump_json())

    layout = LAYOUTS["data 2 over slices, 2 stages, context 2, accumulation 2"]
    assert errors(differentiate(describe(**spec, **CIRCULAR), layout), want) == {}


@pytest.mark.thorough
@pytest.mark.parametrize("repeats", [2, 4])
def test_a_microbatch_goes_through_all_layers_in_their_order(repeats: int) -> None:
    network = resolve(Model(vocab_size=64, embed_dim=16, mlp_dim=24, num_layers=8, num_heads=4, head_dim=4))
    straight, circular = (
        SplitModel(network, Precision(compute="float32"), Memory(), pipeline)
        for pipeline in (Pipeline(), Pipeline(schedule="circular", repeats=repeats))
    )
    params = straight.init(1)
    tokens = jax.random.randint(jax.random.key(0), (6, 2, 8), 0, 64)
    streams = jax.vmap(lambda rows: straight.embed(params, rows))(tokens)

    found = circular.run_stages(params, streams, 2).x

    want = jax.vmap(lambda rows: straight.run_layers(params, straight.embed(params, rows)).x)(tokens)
    assert jnp.max(jnp.abs(found - want)) < 1e-5


@pytest.mark.thorough
def test_a_tick_runs_one_group_of_layers() -> None:
    layout = LAYOUTS["2 stages, 8 microbatches"]
    flops = []
    for changes in ({}, CIRCULAR):
        step, arguments = trace(describe(**DEEP, **changes), layout)
        flops.append(count_flops(HloProgram(step.lower(*arguments).compile().as_text())))

    shares = [1 - PipelineSchedule(8, 2, repeats).bubble_share for repeats in (1, 2)]
    assert flops[1] < flops[0]
    assert flops[1] / flops[0] == pytest.approx(shares[0] / shares[1], rel=0.03)
