"""Spikes: their definition, their window, and their consequences."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.trainer.cases import each
from tests.support.trainer.training import ONE, Run, flat, save_and_restore, spec_with
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.protection import Protection
from trainingjob_api.world import Layout
from trainingjob_trainer.monitoring.bad_steps import MAX_NON_FINITE, MAX_RECENT_SKIPS, MAX_SPIKES, check_step
from trainingjob_trainer.optim.spike_detection import MIN_DEVIATION, SpikeWindow, empty_window, is_spike, update_window
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import StepMetrics

SIZE = 8
SIGMA = 3.0


@cache
def compiled() -> Any:
    def step(window: SpikeWindow, measured_M: jax.Array) -> tuple[SpikeWindow, jax.Array]:
        spike = is_spike(window, measured_M, SIGMA)
        return update_window(window, measured_M, spike, ~spike), spike

    return jax.jit(step)


def find_spikes(measured: list[tuple[float, float]], size: int = SIZE) -> list[bool]:
    window, found = empty_window(size), []
    for pair in measured:
        window, spike = compiled()(window, jnp.array(pair, jnp.float32))
        found.append(bool(spike))
    return found


def reference(measured: list[tuple[float, float]]) -> list[bool]:
    """Return the spikes by the definition: the newest accepted steps, once half of the window is filled."""
    accepted: list[tuple[float, float]] = []
    found = []
    for pair in measured:
        before = np.array(accepted[-SIZE:], np.float32)
        deviation = np.maximum(before.std(axis=0), MIN_DEVIATION * np.abs(before.mean(axis=0))) if accepted else 0.0
        limits = before.mean(axis=0) + SIGMA * deviation if 2 * len(before) >= SIZE else np.inf
        found.append(bool((np.array(pair, np.float32) > limits).any()))
        accepted += [] if found[-1] else [pair]
    return found


levels = st.integers(0, 3).map(lambda level: 4.0**level)
noise = st.integers(-8, 8).map(lambda part: 1 + part / 64)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.tuples(levels, noise, noise), min_size=SIZE, max_size=4 * SIZE))
def test_spikes_match_the_definition(numbers: list[tuple[float, float, float]]) -> None:
    """Levels differ by much more than noise, so that no rounding decides."""
    measured = [(level * first, second) for level, first, second in numbers]

    assert find_spikes(measured) == reference(measured)


FIRST = [(2.0, 1.0), (2.1, 1.1), (1.9, 0.9), (2.0, 1.0)]
STORIES: dict[str, tuple[list[tuple[float, float]], list[bool]]] = {
    "nothing is known at first": ([(2.0, 1.0), (100.0, 1.0), (2.0, 1.0), (2.0, 1.0)], [False] * 4),
    "the loss": ([*FIRST, (9.0, 1.0), (2.0, 1.0)], [*[False] * 4, True, False]),
    "the gradients alone": ([*FIRST, (2.0, 9.0), (2.0, 1.0)], [*[False] * 4, True, False]),
    "a fall is none": ([*FIRST, (0.1, 0.1)], [False] * 5),
    "a spike does not hide the next": ([*FIRST, *[(9.0, 1.0)] * 5], [*[False] * 4, *[True] * 5]),
}


@pytest.mark.parametrize(("measured", "want"), STORIES.values(), ids=STORIES.keys())
def test_spike_thresholds(measured: list[tuple[float, float]], want: list[bool]) -> None:
    assert find_spikes(measured) == want


SHORT: dict[str, tuple[int, list[tuple[float, float]], list[bool]]] = {
    "after one step nobody knows how far a loss varies": (2, [(2.0, 1.0), (2.1, 1.0)], [False, False]),
    "nor after two or three": (4, [(2.0, 1.0), (2.1, 1.0), (4.0, 1.0), (8.0, 2.0)], [False] * 4),
    "steps that are alike make no small rise a spike": (2, [(2.0, 1.0), (2.0, 1.0), (2.005, 1.002)], [False] * 3),
    "but a large one": (2, [(2.0, 1.0), (2.0, 1.0), (3.0, 1.0)], [False, False, True]),
}


@pytest.mark.parametrize(("size", "measured", "want"), SHORT.values(), ids=SHORT.keys())
def test_few_steps_do_not_make_a_rise_a_spike(size: int, measured: list[tuple[float, float]], want: list[bool]) -> None:
    assert find_spikes(measured, size) == want


def watched(layout: Layout) -> Run:
    """Return a run with spike detection after two steps, for which the next step is a spike."""
    run = Run(spec_with(protection__spikes={"window": 4}), layout)
    list(run.train(2))
    calm = SpikeWindow(np.zeros((2, 4), np.float32), np.int32(4), np.int32(0))  # type: ignore[arg-type]
    assert run.state.window is not None
    placed = SpikeWindow(*(jax.device_put(new, old.sharding) for new, old in zip(calm, run.state.window, strict=True)))
    run.state = run.state._replace(window=placed)
    return run


@each("layout", {name: LAYOUTS[name] for name in ("one device", "data 2 over slices, fsdp 4")}, "one device")
def test_update_of_a_spike_is_skipped(layout: Layout) -> None:
    run = watched(layout)
    before = flat((run.state.params, run.state.opt, run.state.window.seen if run.state.window else None))

    measures = list(run.train(2))

    after = flat((run.state.params, run.state.opt, run.state.window.seen if run.state.window else None))
    assert [int(one.spikes) for one in measures if one.spikes is not None] == [1, 2]
    assert (int(run.state.step), int(run.state.skipped), int(run.state.non_finite)) == (4, 2, 0)
    assert all(np.array_equal(before[path], after[path]) for path in before)


def test_window_contains_accepted_steps_with_a_finite_loss() -> None:
    run = Run(spec_with(protection__spikes={"window": 4}), ONE)
    (first,) = run.train(1)
    whole = run.state.params["embedding"]
    run.state = run.state._replace(params=run.state.params | {"embedding": whole * jnp.nan})

    (broken,) = run.train(1)

    assert run.state.window is not None
    assert np.array_equal(run.state.window.seen[:, 0], [first.loss, first.grad_norm])
    assert not run.state.window.seen[:, 1:].any()
    assert (int(run.state.window.num_steps), int(broken.spikes or 0), int(broken.non_finite)) == (1, 0, 1)


def test_window_is_saved_and_empty_for_an_older_step(tmp_path: Any) -> None:
    run = Run(spec_with(protection__spikes={"window": 4}), ONE)
    list(run.train(2))

    for name in ("with", "without"):
        (tmp_path / name).mkdir()

    again = save_and_restore(tmp_path / "with", run.state, run.steps.state_shapes)
    fresh = save_and_restore(tmp_path / "without", run.state._replace(window=None), run.steps.state_shapes)

    assert again.window is not None
    assert int(again.window.num_steps) == 2
    assert np.array_equal(again.window.seen, run.state.window.seen if run.state.window else None)
    assert fresh.window is not None
    assert int(fresh.window.num_steps) == 0
    assert fresh.window.seen.sharding == run.steps.state_shapes.window.seen.sharding  # type: ignore[union-attr]
    want = flat(run.state.params)
    assert all(np.array_equal(leaf, want[path]) for path, leaf in flat(fresh.params).items())


@pytest.mark.parametrize("spikes", [None, {"window": 6}])
def test_a_window_that_does_not_fit_is_left_out(tmp_path: Any, spikes: Any) -> None:
    run = Run(spec_with(protection__spikes={"window": 4}), ONE)
    list(run.train(2))
    other = Run(spec_with(protection__spikes=spikes), ONE)

    restored = save_and_restore(tmp_path, run.state, other.steps.state_shapes)

    assert jax.tree.map(np.shape, restored) == jax.tree.map(np.shape, other.steps.state_shapes)
    assert int(restored.step) == 2
    assert restored.window is None or int(restored.window.num_steps) == 0


LOOK: dict[str, Any] = {"spikes": {}}
STOP: dict[str, Any] = {"nonFinite": "stop", "spikes": {"action": "stop", "sigma": 4}}
type Row = tuple[dict[str, Any], int, int, int, tuple[FailureReason, bool] | None]
"""The protection; of the newest steps, those in a row that are not finite or spikes, and all without their update."""
ENDS: dict[str, Row] = {
    "nothing": (STOP, 0, 0, 0, None),
    "one that is not finite": (LOOK, 1, 0, MAX_RECENT_SKIPS, None),
    "too many that are not finite": (LOOK, MAX_NON_FINITE, 0, 3, (FailureReason.NON_FINITE, False)),
    "one that is not finite, and the job is to stop": (STOP, 1, 0, 1, (FailureReason.NON_FINITE, True)),
    "a spike": (LOOK, 0, MAX_SPIKES - 1, MAX_RECENT_SKIPS, None),
    "too many spikes": (LOOK, 0, MAX_SPIKES, 10, (FailureReason.LOSS_SPIKE, False)),
    "a spike, and the job is to stop": (STOP, 0, 1, 1, (FailureReason.LOSS_SPIKE, True)),
    "a spike that nobody looks for": ({}, 0, MAX_SPIKES, 0, None),
    "too many of the newest, this one not finite": (
        LOOK,
        1,
        0,
        MAX_RECENT_SKIPS + 1,
        (FailureReason.NON_FINITE, False),
    ),
    "too many of the newest, this one a spike": (LOOK, 0, 1, MAX_RECENT_SKIPS + 1, (FailureReason.LOSS_SPIKE, False)),
    "a good step after too many": (LOOK, 0, 0, MAX_RECENT_SKIPS + 1, None),
}


@pytest.mark.parametrize(("protection", "non_finite", "spikes", "lately", "want"), ENDS.values(), ids=ENDS.keys())
def test_consequences_of_bad_steps(
    protection: dict[str, Any], non_finite: int, spikes: int, lately: int, want: tuple[FailureReason, bool] | None
) -> None:
    measures: Any = StepMetrics(9.0, 3.0, 0.1, non_finite, 0, 0, {}, spikes)  # type: ignore[arg-type]
    spec = Protection.model_validate(protection)
    if want is None:
        check_step(41, measures, spec, lately)
        return

    with pytest.raises(TrainingError, match=r"step 41\b") as caught:
        check_step(41, measures, spec, lately)

    assert (caught.value.reason, caught.value.fatal) == want


def test_too_many_skipped_updates_are_reported_with_their_number() -> None:
    measures: Any = StepMetrics(9.0, 3.0, 0.1, 1, 30, 0, {})  # type: ignore[arg-type]

    with pytest.raises(TrainingError, match=r"at step 41. 26 of the newest 100 updates were skipped \(limit: 25\)"):
        check_step(41, measures, Protection(), 26)


def test_message_names_the_step_and_the_values() -> None:
    measures: Any = StepMetrics(9.123, 33.4, 0.1, 0, 1, 0, {}, 1)  # type: ignore[arg-type]

    with pytest.raises(TrainingError) as caught:
        check_step(41, measures, Protection.model_validate(STOP), 1)

    assert str(caught.value) == (
        "loss (9.123) or gradient norm (33.4) was more than 4 standard deviations above the window's mean "
        "at step 41, whose update was skipped. Look at the data of these steps. Lower "
        "spec.optimizer.learningRate, or raise spec.protection.spikes.sigma."
    )
