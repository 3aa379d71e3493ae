"""Factors of the learning rate: a tensor with one moves by so much more, its weight decay included."""

from typing import Any

import numpy as np
import pytest

from tests.support.trainer.training import ONE, Run, check_restored, flat, losses, save_and_restore, spec_with
from tests.trainer.test_step import LAYOUTS

SCALES: list[dict[str, Any]] = [
    {"tensors": ["embedding", "*.attention.query"], "scale": 0.5},
    {"tensors": ["*.attention.*"], "scale": 3.0},
]
TYPES: dict[str, dict[str, Any]] = {
    "adamw": {"adamw": {}},
    "lion": {"lion": {}},
    "muon": {"muon": {"rmsScale": 0.2}},
    "sgd": {"sgd": {"momentum": 0.9}},
}
SCALED: dict[str, Any] = {"optimizer__learningRate": 0.01, "optimizer__learningRates": SCALES}
MESH = "data 2, fsdp 2, tensor 2, accumulation 2"


def moves(spec: Any) -> dict[str, np.ndarray]:
    """Return what the first step changes, by tensor."""
    run = Run(spec, ONE)
    before = flat(run.state.params)
    list(run.train(1))
    return {name: after - before[name] for name, after in flat(run.state.params).items()}


@pytest.mark.thorough
@pytest.mark.parametrize("kind", TYPES)
def test_the_first_item_that_names_a_tensor_scales_its_update_and_weight_decay(kind: str) -> None:
    changes = {f"optimizer__{name}": value for name, value in ({"type": kind} | TYPES[kind]).items()}
    changes |= {"optimizer__learningRate": 0.01, "optimizer__weightDecay": {"rate": 3.0, "exclude": ["norm"]}}

    plain = moves(spec_with(**changes))
    scaled = moves(spec_with(**changes, optimizer__learningRates=SCALES))

    for name, move in scaled.items():
        first = "embedding" in name or "query" in name
        factor = 0.5 if first else 3.0 if "'attention'" in name else 1.0
        np.testing.assert_allclose(move, factor * plain[name], atol=2e-7, err_msg=name)
    assert {"embedding", "query", "value", "mlp"} <= {part for name in scaled for part in name.split("'")}


@pytest.mark.thorough
def test_the_loss_curve_does_not_depend_on_the_mesh() -> None:
    curve = losses(spec_with(**SCALED), ONE)

    assert curve != losses(spec_with(optimizer__learningRate=0.01), ONE)
    assert losses(spec_with(**SCALED), LAYOUTS[MESH]) == pytest.approx(curve, abs=1e-4)


def test_a_checkpoint_of_a_job_without_factors_restores(tmp_path: Any) -> None:
    plain, scaled = Run(spec_with(), ONE), Run(spec_with(**SCALED), ONE)
    list(plain.train(1))

    save_and_restore(tmp_path, plain.state, scaled.steps.state_shapes)
    (tmp_path / "scaled").mkdir()
    check_restored(tmp_path / "scaled", scaled)
