"""Norms of tensors: those of a float64 reference on every mesh, from a step that trains as the plain one does."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.reference_gradients import find_gradients
from tests.support.trainer.training import BATCH, ONE, Run, flat, sequences_of, spec_with
from tests.trainer.test_step import LAYOUTS, ask
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.state import Controls, StepMetrics

TRAINED: dict[str, Any] = {"optimizer__learningRate": 0.01}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 4, "targets": ["*.attention.query"]}}


def measure(run: Run, number: int = 1, controls: Controls | None = None) -> StepMetrics:
    """Train one step that measures norms."""
    shardings = jax.tree.map(lambda leaf: leaf.sharding, run.steps.state_shapes)
    step = jax.jit(partial(run.steps.train, measures_norms=True), donate_argnums=0, out_shardings=(shardings, None))
    run.state, measured = step(run.state, run.batch(number), controls or run.controls())
    return measured  # type: ignore[no-any-return]


def by_tensor(tree: Any) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {tensor_name(path): np.asarray(leaf, np.float64) for path, leaf in leaves}


def norms_of(kind: str, tree: dict[str, np.ndarray]) -> dict[str, float]:
    return {f"{kind}/{name}": float(np.linalg.norm(leaf)) for name, leaf in tree.items()}


def read(measured: StepMetrics) -> dict[str, float]:
    assert measured.norms is not None
    return {name: float(norm) for name, norm in measured.norms.items()}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("one device", {}),
        ("data 2 over slices, fsdp 4", {}),
        ("data 2, fsdp 2, tensor 2, accumulation 2", {}),
        ("2 stages, fsdp 2, tensor 2, 4 microbatches", {}),
        ("data 8", {"parallelism__shardOptimizerOverData": True}),
    ],
)
def test_norms_are_those_of_the_reference_on_every_mesh(layout: str, changes: dict[str, Any]) -> None:
    spec = spec_with(**TRAINED, **changes)
    run = Run(spec, LAYOUTS[layout])
    before = jax.device_get(run.state.params)
    tokens = sequences_of(run.batch(1)).reshape(BATCH, -1)
    _, gradients = find_gradients(spec, before, tokens)

    measured = measure(run)
    got = read(measured)

    changed = {name: after - by_tensor(before)[name] for name, after in by_tensor(run.state.params).items()}
    want = {
        **norms_of("param_norm", by_tensor(before)),
        **norms_of("grad_norm", by_tensor(gradients)),
        **norms_of("update_norm", changed),
    }
    assert got.keys() == want.keys()
    assert got == pytest.approx(want, rel=1e-3, abs=1e-6)
    squares = [norm**2 for name, norm in got.items() if name.startswith("grad_norm/")]
    assert np.sqrt(sum(squares)) == pytest.approx(float(measured.grad_norm), rel=1e-5)


@pytest.mark.thorough
def test_a_step_that_measures_norms_trains_as_the_plain_step_does() -> None:
    one, other = (Run(spec_with(**TRAINED), LAYOUTS["data 8"]) for _ in range(2))

    for number in range(1, 4):
        list(one.train(1))
        measure(other, number)

    got, want = flat(other.state), flat(one.state)
    assert all(np.allclose(got[name], want[name], atol=1e-5) for name in want)


def test_a_skipped_update_has_the_norm_0() -> None:
    run = Run(spec_with(**TRAINED), LAYOUTS["data 8"])

    got = read(measure(run, 1, ask(run, 0, 0, 0, 4, 0, 0, 0, 0)))

    assert {norm for name, norm in got.items() if name.startswith("update_norm/")} == {0.0}
    assert all(norm > 0 for name, norm in got.items() if name.startswith("param_norm/") and "bias" not in name)


@pytest.mark.thorough
def test_frozen_tensors_have_no_norms() -> None:
    run = Run(spec_with(**TRAINED, **LORA), ONE)

    names = read(measure(run))

    assert len(names) == 6
    assert all("lora" in name or "adapter" in name or "query" in name for name in names)


@pytest.mark.parametrize("changes", [{}, {"model__experts": {"count": 4, "perToken": 2}}], ids=["dense", "experts"])
def test_the_step_returns_what_its_signature_declares(changes: dict[str, Any]) -> None:
    steps = Run(spec_with(**changes), ONE).steps
    arguments, declared = steps._train_signature((1, 1, BATCH), measures_norms=True)

    traced = jax.eval_shape(partial(steps.train, measures_norms=True), *arguments)
    assert jax.tree.structure(traced) == jax.tree.structure(declared)
