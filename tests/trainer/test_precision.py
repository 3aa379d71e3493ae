"""Number formats of a step: the loss stays near float32, and sums have the format of the spec."""

from typing import Any

import jax
import pytest

from tests.support.trainer.training import ONE, Run, losses, spec_with
from tests.trainer.models.test_gradients import walk


def trace(**precision: Any) -> tuple[Run, Any]:
    run = Run(spec_with(precision={"compute": "float32", **precision}), ONE)
    return run, jax.make_jaxpr(run.steps.train)(run.state, run.batch(1), run.controls()).jaxpr


@pytest.mark.thorough
def test_narrow_moments_and_gradients_train_nearly_alike() -> None:
    narrow = spec_with(precision={"compute": "float32", "gradients": "bfloat16", "moments": "bfloat16"})

    assert losses(narrow, ONE) == pytest.approx(losses(spec_with(), ONE), abs=0.02)


@pytest.mark.thorough
def test_narrow_logits_train_nearly_alike() -> None:
    """The softmax of logits in bfloat16 is computed in float32, whole and in chunks."""
    want = losses(spec_with(precision={"compute": "bfloat16"}), ONE)

    for chunks in (1, 3):
        spec = spec_with(precision={"compute": "bfloat16", "logits": "bfloat16"}, memory__lossChunks=chunks)
        assert losses(spec, ONE) == pytest.approx(want, abs=0.03)


def test_gradients_are_summed_in_the_format_of_the_spec() -> None:
    """Vectors take few bytes, and the loads of experts must not be rounded."""
    for dtype in ("float32", "bfloat16"):
        run, program = trace(gradients=dtype)
        matrix, scale = run.state.params["embedding"].shape, run.state.params["norm"]["scale"].shape
        (outer, *_) = [line for line in program.eqns if line.primitive.name == "scan"]
        sums = {one.aval.shape: one.aval.dtype for one in outer.outvars}

        assert (sums[matrix], sums[scale]) == (dtype, "float32")


def test_matmuls_have_the_precision_of_the_spec() -> None:
    for matmul, precision in (("default", None), ("highest", (jax.lax.Precision.HIGHEST,) * 2)):
        _, program = trace(matmul=matmul)
        found = {line.params["precision"] for line in walk(program) if line.primitive.name == "dot_general"}

        assert found == {precision}
