"""A loss of the user in the training step: the numbers are those of the same built-in loss, on every layout."""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from tests.support.trainer.training import ONE, Run, losses, spec_with
from trainingjob_api.protocol import FailureReason, Phase
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.entrypoint import StepParts, Terms
from trainingjob_trainer.runtime.entrypoint_module import load_entrypoint
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import State

EXAMPLES = Path(__file__).parents[2] / "crds/examples"
TWO_SLICES = make_layout(num_slices=2, dcn=AxisDegrees(data=2), rows_per_shard=1, accumulation=2)
SCALAR = jnp.zeros(())


def focal(gamma: str) -> dict[str, Any]:
    return {"entrypoint": "focal_loss:customize", "workingDirectory": str(EXAMPLES), "config": {"gamma": gamma}}


@pytest.mark.thorough
def test_the_same_loss_trains_the_same() -> None:
    builtin = losses(spec_with(), TWO_SLICES)

    np.testing.assert_allclose(losses(spec_with(program=focal("0")), TWO_SLICES), builtin, rtol=1e-6)


@pytest.mark.thorough
def test_another_loss_trains_the_same_on_every_layout() -> None:
    curve = losses(spec_with(program=focal("2")), TWO_SLICES)

    np.testing.assert_allclose(losses(spec_with(program=focal("2")), ONE), curve, rtol=1e-5)
    assert np.max(np.abs(np.subtract(curve, losses(spec_with(), TWO_SLICES))[1:])) > 1e-3


def returning(terms: Any) -> Any:
    return lambda context: StepParts(loss=lambda model, params, batch: terms)


def raise_error(*arguments: object) -> Any:
    raise KeyError("gamma")


INVALID = {
    "no parts": (lambda context: None, {}, "the function must return `StepParts`, but returned NoneType."),
    "an error": (raise_error, {}, "the call of the function failed with KeyError: 'gamma' ("),
    "an error of the loss": (
        lambda context: StepParts(loss=raise_error),
        {},
        "the loss failed with KeyError: 'gamma' (",
    ),
    "no terms": (returning(SCALAR), {}, "the loss must return `Terms`, but returned ArrayImpl."),
    "metrics": (
        returning(Terms(SCALAR, SCALAR, SCALAR, {"margin": SCALAR})),
        {},
        "the loss must return `Terms` without metrics, but its metrics are margin.",
    ),
    "no scalar": (
        returning(Terms(jnp.zeros(3), SCALAR, SCALAR, {})),
        {},
        "the loss must return a float32 scalar as `total`, but returned float32[3].",
    ),
    "a narrow sum": (
        returning(Terms(SCALAR, SCALAR, SCALAR.astype(jnp.bfloat16), {})),
        {},
        "the loss must return a float32 scalar as `weight`, but returned bfloat16[].",
    ),
    "a z-loss": (
        returning(None),
        {"objective": {"zLoss": 0.1}},
        "must not be set, because the function of `spec.program.entrypoint` returns another loss. Remove it.",
    ),
}


@pytest.mark.parametrize(("function", "changes", "message"), INVALID.values(), ids=INVALID)
def test_a_function_that_returns_anything_else_is_named(
    function: Any, changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with(program=focal("0") | {"config": {"case": message}}, **changes)
    assert spec.program
    loaded = load_entrypoint(spec.program)._replace(function=function, sources=Path(__file__))
    monkeypatch.setattr(sys.modules["trainingjob_trainer.entrypoint"], "load_entrypoint", lambda program: loaded)

    with pytest.raises(TrainingError) as caught:
        next(Run(spec, ONE).train(1))
    assert str(caught.value).startswith(message)
    assert caught.value.fatal
    assert caught.value.path == ("spec.objective.zLoss" if changes else "spec.program.entrypoint")


def replace(monkeypatch: pytest.MonkeyPatch, function: Any, case: str, **changes: Any) -> Any:
    """Return a spec whose function is replaced by another one."""
    spec = spec_with(program=focal("0") | {"config": {"case": case}}, **changes)
    assert spec.program
    loaded = load_entrypoint(spec.program)._replace(function=function, sources=Path(__file__))
    monkeypatch.setattr(sys.modules["trainingjob_trainer.entrypoint"], "load_entrypoint", lambda program: loaded)
    return spec


FURTHER_TOKENS = {"model__multiTokenPrediction": {"depth": 1}}


def test_a_loss_that_trains_no_modules_of_further_tokens_is_rejected() -> None:
    with pytest.raises(TrainingError) as caught:
        next(Run(spec_with(program=focal("0"), **FURTHER_TOKENS), ONE).train(1))

    message = "must not be set, because the loss of `spec.program.entrypoint` runs no module of further tokens."
    assert str(caught.value).startswith(message)
    assert caught.value.path == "spec.model.multiTokenPrediction"


@pytest.mark.thorough
def test_a_loss_may_change_the_builtin_one_of_further_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(monkeypatch, lambda context: StepParts(loss=context.loss), "further", **FURTHER_TOKENS)

    assert losses(spec, ONE) == pytest.approx(losses(spec_with(**FURTHER_TOKENS), ONE))


def clip(state: State) -> State:
    return state._replace(params=jax.tree.map(lambda param: jnp.clip(param, -0.01, 0.01), state.params))


def wrapping(change: Any) -> Any:
    """Return a function whose step changes what the built-in step returns."""
    return lambda context: StepParts(wrap_step=lambda step: lambda *arguments: change(*step(*arguments)))


@pytest.mark.thorough
def test_a_step_may_change_what_the_trainer_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(monkeypatch, wrapping(lambda state, metrics: (clip(state), metrics)), "clip")
    run = Run(spec, TWO_SLICES)
    curve = [float(metrics.loss) for metrics in run.train()]

    assert max(float(jnp.max(jnp.abs(param))) for param in jax.tree.leaves(run.state.params)) <= 0.01
    assert curve[0] == losses(spec_with(), TWO_SLICES)[0]
    assert np.max(np.abs(np.subtract(curve, losses(spec_with(), TWO_SLICES))[1:])) > 1e-3


INVALID_STEPS = {
    "no metrics": (lambda state, metrics: state, ", but their structure differs."),
    "more metrics": (
        lambda state, metrics: (state, metrics._replace(objective={"margin": metrics.loss})),
        ", but their structure differs.",
    ),
    "another format": (
        lambda state, metrics: (state._replace(step=state.step.astype(jnp.float32)), metrics),
        ", but 0.step is float32[] in place of int32[].",
    ),
}


@pytest.mark.parametrize(("change", "words"), INVALID_STEPS.values(), ids=INVALID_STEPS)
def test_a_step_that_returns_anything_else_is_named(change: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(monkeypatch, wrapping(change), words)

    with pytest.raises(TrainingError) as caught:
        next(Run(spec, ONE).train(1))
    assert str(caught.value) == (
        f"the training step must return a state and metrics like those of the built-in step{words}"
    )


@pytest.mark.slow
def test_a_trainer_reports_an_unusable_function_at_once(crew: Crew, tmp_path: Path, text: Path) -> None:
    (tmp_path / "losses.py").write_text("1 / 0")
    program = {"entrypoint": "losses:customize", "workingDirectory": str(tmp_path)}
    config = make_config(make_spec(tmp_path / "run", text, program=program))
    (trainer,) = crew.start(config, make_world(1, 1), tmp_path / "programs")

    assert trainer.wait_for_end() == 1
    assert trainer.failure
    assert (trainer.failure.reason, trainer.failure.fatal) == (FailureReason.CONFIG, True)
    assert trainer.failure.path == "spec.program.entrypoint"
    assert f"ZeroDivisionError: division by zero ({tmp_path}/losses.py:1)" in trainer.failure.message
    assert Phase.CONNECTING not in trainer.phases


@pytest.mark.thorough
def test_a_function_may_keep_the_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(monkeypatch, lambda context: StepParts(), "kept")

    assert losses(spec, TWO_SLICES) == losses(spec_with(), TWO_SLICES)
