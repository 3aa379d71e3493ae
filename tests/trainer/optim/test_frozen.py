"""Frozen parameters: no update, no state of the optimizer, no matmul for their gradients, on every layout."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.tiny import make_layout
from tests.support.trainer.training import ONE, Run, check_restored, flat, losses, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.world import JobIdentity, Layout, RunConfig
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_trainer.compile_report.compile_account import compile_step
from trainingjob_trainer.models.trainable import ParamSplit

SOME: dict[str, Any] = {"optimizer__trainable": ["*.attention.query", "norm.*"]}
UNCLIPPED: dict[str, Any] = {"optimizer__clipNorm": 0}
CASES: dict[str, dict[str, Any]] = {
    "attention": SOME,
    "head": {"optimizer__trainable": ["head"]},
    "embedding": {"optimizer__trainable": ["embedding"]},
    "tied, without the table": {"optimizer__trainable": ["layers.*"], "model__tieEmbeddings": True},
    "experts": {"optimizer__trainable": ["*.mlp.*"], "model__experts": {"count": 4, "perToken": 2}},
    "chunks of logits": SOME | {"memory__lossChunks": 4},
}
MESH = "data 2 over slices, fsdp 4"
LONG = "context 4, tensor 2, accumulation 2"
PIPELINE = "2 stages, fsdp 2, tensor 2, 4 microbatches"


@pytest.mark.thorough
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_training_changes_the_matching_tensors_alone(changes: dict[str, Any]) -> None:
    spec = spec_with(**changes)
    run = Run(spec, ONE)
    before = flat(run.state.params)

    list(run.train())

    trained = {name for name, value in flat(run.state.params).items() if not np.array_equal(value, before[name])}
    expected = {tensor.name for tensor in resolve_network(spec).tensors if tensor.is_trainable}
    assert {name.replace("']['", ".").strip("[']") for name in trained} == expected
    assert {leaf.size for leaf in jax.tree.leaves(run.state.opt[1].mu)} == {
        tensor.size for tensor in resolve_network(spec).tensors if tensor.is_trainable
    }


@pytest.mark.thorough
def test_the_first_update_of_trained_tensors_is_that_of_a_whole_model() -> None:
    whole, part = Run(spec_with(**UNCLIPPED), ONE), Run(spec_with(**UNCLIPPED | SOME), ONE)

    for run in (whole, part):
        next(run.train(1))

    split = ParamSplit(resolve_network(part.spec))
    ours, theirs = (flat(split.split(run.state.params).trained) for run in (part, whole))
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-6)


@each("changes", CASES, "attention")
@each("layout", {name: LAYOUTS[name] for name in (MESH, LONG, PIPELINE)}, MESH)
def test_the_loss_curve_does_not_depend_on_the_layout(changes: dict[str, Any], layout: Layout) -> None:
    assert losses(spec_with(**changes), layout) == pytest.approx(losses(spec_with(**changes), ONE), abs=1e-4)


@pytest.mark.thorough
@each("changes", {"all": {}} | CASES, "attention")
def test_a_compiled_step_has_the_flops_of_the_plan(changes: dict[str, Any]) -> None:
    spec, layout = spec_with(**changes), make_layout(accumulation=2)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    config = RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))

    planned = count_step_flops(describe_workload(spec), layout)

    # The choice of experts has a few products that the plan leaves out.
    assert compile_step(config, layout).flops == pytest.approx(planned, rel=0.01 if spec.model.experts else 0)


@pytest.mark.thorough
@pytest.mark.parametrize("remat", ["full", "saveAttention", "saveMatmuls", "minimal"])
def test_a_recomputed_layer_with_a_frozen_output_projection_has_the_flops_of_the_plan(remat: str) -> None:
    spec, layout = spec_with(memory__remat=remat, **SOME), make_layout(accumulation=2)
    identity = JobIdentity(name="tiny", namespace="", uid="")
    config = RunConfig(job=identity, spec=spec, accelerator_platform="cpu", layouts=(layout,))

    planned = count_step_flops(describe_workload(spec), layout)

    assert compile_step(config, layout).flops == planned


def test_a_checkpoint_restores_trained_and_frozen_parameters(tmp_path: Any) -> None:
    check_restored(tmp_path, Run(spec_with(**SOME), ONE))


@pytest.mark.thorough
def test_the_gradient_norm_is_that_of_the_trained_parameters() -> None:
    run = Run(spec_with(**UNCLIPPED | SOME), ONE)

    measures = next(run.train(1))

    terms, grads = Run(spec_with(**UNCLIPPED), ONE).steps._sums.compute_gradients(
        jax.device_put(Run(spec_with(**UNCLIPPED), ONE).state.params), run.batch(1)
    )
    split = ParamSplit(resolve_network(run.spec))
    squares = [jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(split.split(grads).trained)]
    assert float(measures.grad_norm) == pytest.approx(float(jnp.sqrt(sum(squares)) / terms.weight), rel=1e-4)
