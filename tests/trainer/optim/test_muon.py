"""Muon for the matrices of layers, against Optax, and AdamW for the rest."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax.contrib import MuonDimensionNumbers, muon

from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, check_restored, losses, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Muon, Optimizer, WeightDecay
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.precision import Precision
from trainingjob_api.world import JobIdentity, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.optim.factory import make_optimizer

EXPERTS = {"count": 4, "perToken": 2, "dispatch": "dropless"}
NETWORK = resolve(
    Model.model_validate(
        {
            "vocabSize": 8,
            "embedDim": 12,
            "mlpDim": 20,
            "numLayers": 2,
            "numHeads": 4,
            "numKvHeads": 2,
            "headDim": 4,
            "experts": EXPERTS,
        }
    )
)
DIMS = {
    "query": MuonDimensionNumbers(1, (2, 3)),
    "key": MuonDimensionNumbers(1, (2, 3)),
    "value": MuonDimensionNumbers(1, (2, 3)),
    "out": MuonDimensionNumbers((1, 2), 3),
    "gate": MuonDimensionNumbers(2, 3),
    "up": MuonDimensionNumbers(2, 3),
    "down": MuonDimensionNumbers(2, 3),
}
"""Dims of the input and the output of the matrices of stacked layers, by the last part of their name."""
TRAINED: dict[str, Any] = {
    "optimizer__type": "muon",
    "optimizer__learningRate": 0.01,
    "optimizer__muon": {"rmsScale": 0.2},
}
MESHES: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, {})
    for name in (
        "data 2 over slices, fsdp 4",
        "context 4, tensor 2, accumulation 2",
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
    )
} | {"optimizer over data": ("data 8", {"parallelism__shardOptimizerOverData": True})}


@pytest.mark.thorough
@pytest.mark.parametrize("rms", [None, 0.2])
def test_twenty_updates_are_those_of_optax(rms: float | None) -> None:
    config = Optimizer(
        type="muon",
        learning_rate=1,
        weight_decay=WeightDecay(rate=0.0),
        muon=Muon(momentum=0.9, newton_schulz_steps=4, rms_scale=rms),
    )
    random = np.random.default_rng(0)

    def draw() -> dict[str, jax.Array]:
        return {one.name: jnp.float32(random.normal(size=one.shape)) for one in NETWORK.tensors}

    dims = {tensor.name: DIMS.get(tensor.local_name) for tensor in NETWORK.tensors}
    ours = make_optimizer(config, NETWORK, Precision())
    reference = muon(1.0, ns_steps=4, beta=0.9, consistent_rms=rms, muon_weight_dimension_numbers=dims)
    adam = optax.scale_by_adam(0.9, 0.95, 1e-8)
    params = draw()
    ours_state, reference_state, adam_state = ours.init(params), reference.init(params), adam.init(params)
    update, update_reference = jax.jit(ours.update), jax.jit(reference.update)

    for _ in range(20):
        grads = draw()
        updates, ours_state = update(grads, ours_state, params)
        wanted, reference_state = update_reference(grads, reference_state, params)
        rest, adam_state = adam.update(grads, adam_state)

        for name, one in updates.items():
            want = rest[name] if dims[name] is None else -wanted[name]
            np.testing.assert_allclose(one, want, atol=1e-5, err_msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "changes"), MESHES.values(), ids=MESHES.keys())
def test_the_loss_curve_does_not_depend_on_the_mesh(layout: str, changes: dict[str, Any]) -> None:
    curve = losses(spec_with(**TRAINED), ONE)

    assert curve[-1] < curve[0]
    assert losses(spec_with(**TRAINED, **changes), LAYOUTS[layout]) == pytest.approx(curve, abs=1e-4)


@pytest.mark.thorough
def test_the_loss_curve_of_experts_does_not_depend_on_the_mesh() -> None:
    spec = spec_with(**TRAINED, model__experts=EXPERTS)
    mesh = make_layout(devices_per_host=4, ici=AxisDegrees(expert=2, fsdp=2), rows_per_shard=2)

    assert losses(spec, mesh) == pytest.approx(losses(spec, ONE), abs=1e-4)


def test_a_checkpoint_restores_the_slots(tmp_path: Any) -> None:
    check_restored(tmp_path, Run(spec_with(**TRAINED), ONE))


def test_frozen_matrices_have_no_slot() -> None:
    run = Run(spec_with(**TRAINED, optimizer__trainable=["*.attention.query", "norm.*"]), ONE)

    assert sum(leaf.size for leaf in jax.tree.leaves(run.state.opt) if leaf.ndim > 1) == sum(
        tensor.size for tensor in resolve(run.spec.model).tensors if tensor.name.endswith("attention.query")
    )


@pytest.mark.thorough
def test_a_compiled_step_has_the_flops_of_the_plan() -> None:
    spec, layout = spec_with(**TRAINED), make_layout(devices_per_host=1, ici=AxisDegrees(), accumulation=2)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    config = RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))

    assert compile_step(config, layout).flops == count_step_flops(describe_workload(spec), layout)
