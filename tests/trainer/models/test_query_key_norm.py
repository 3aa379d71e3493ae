"""Norm of queries and keys: steps are those of the reference, and the same on every layout."""

from typing import Any

import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.reference import row_losses
from tests.support.trainer.training import ONE, Run, losses, numpy_tree, spec_with
from tests.trainer.models.test_hyperparameters import FAR, NEAR, Training, describe, usual_course
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.world import Layout

NORMED: dict[str, Any] = {"model__attention": {"queryKeyNorm": "perHead"}}
SINGLE_HEADED = "context 4, tensor 2, accumulation 2"


@pytest.mark.thorough
def test_steps_in_float32_are_those_of_the_reference() -> None:
    training = Training(describe(NORMED))

    want = training.follow_the_reference()

    assert want.measured[0][0] == pytest.approx(training.forward_loss(), rel=1e-5)
    assert not want.has_shapes_of(usual_course(describe({}).model_dump_json()))
    assert training.train().distance(want) < NEAR


def test_the_scales_shape_the_loss() -> None:
    training = Training(describe(NORMED))
    loss = training.forward_loss()
    attention = training.params["layers"]["attention"]

    for name in ("query_norm", "key_norm"):
        kept = attention[name]["scale"]
        attention[name]["scale"] = np.ones_like(kept)
        assert abs(training.forward_loss() / loss - 1) > FAR / 100
        attention[name]["scale"] = kept


@pytest.mark.thorough
def test_the_loss_in_bfloat16_is_near_the_reference() -> None:
    spec = spec_with(precision__compute="bfloat16", **NORMED)
    run = Run(spec, ONE)
    batch = run.batch(1)

    total, weight = run.evaluate(run.state.params, batch)

    want = [row_losses(spec, numpy_tree(run.state.params), row) for row in np.asarray(batch.tokens[0, 0])]
    assert float(total) / float(weight) == pytest.approx(np.mean(want), rel=2e-3)


@pytest.mark.thorough
@each("layout", {name: layout for name, layout in LAYOUTS.items() if layout != ONE}, SINGLE_HEADED)
def test_the_loss_curve_does_not_depend_on_the_layout(layout: Layout) -> None:
    assert losses(spec_with(**NORMED), layout) == pytest.approx(losses(spec_with(**NORMED), ONE), abs=1e-4)
