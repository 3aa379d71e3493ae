"""The learning rate of each step, for each shape of the schedule."""

import jax
import jax.numpy as jnp
import pytest

from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.schedule import Cycles, Polynomial, Schedule, Wsd
from trainingjob_trainer.optim.learning_rate import learning_rate

RATES: dict[str, tuple[Schedule, dict[int, float]]] = {
    "constant": (Schedule(type="constant"), {1: 1.0, 100: 1.0}),
    "warm-up from zero": (Schedule(type="constant", warmup=10), {1: 0.1, 5: 0.5, 10: 1.0, 11: 1.0}),
    "a share of warm-up": (Schedule(type="constant", warmup="10%"), {1: 0.1, 5: 0.5, 10: 1.0, 11: 1.0}),
    "linear to the final fraction": (Schedule(type="linear", final_fraction=0.2), {50: 0.6, 100: 0.2}),
    "cosine to the final fraction": (
        Schedule(type="cosine", warmup=20, final_fraction=0.0),
        {20: 1.0, 60: 0.5, 100: 0.0},
    ),
    "the peak, then a linear decay": (
        Schedule(type="wsd", warmup=10, final_fraction=0.2, wsd=Wsd(decay=20)),
        {5: 0.5, 10: 1.0, 80: 1.0, 90: 0.6, 100: 0.2},
    ),
    "a tenth of decay by default": (Schedule(type="wsd", final_fraction=0.0), {90: 1.0, 95: 0.5, 100: 0.0}),
    "no decay before and after the end": (
        Schedule(type="wsd", steps=9, final_fraction=0.0),  # a tenth of 9 steps is none
        {8: 1.0, 9: 1.0, 10: 1.0, 100: 1.0},
    ),
    "a decay by cosine": (
        Schedule(type="wsd", final_fraction=0.0, wsd=Wsd(decay="40%", shape="cosine")),
        {60: 1.0, 70: 0.5 * (1 + 0.5**0.5), 80: 0.5, 100: 0.0},
    ),
    "a decay by the root": (
        Schedule(type="wsd", final_fraction=0.0, wsd=Wsd(decay=40, shape="sqrt")),
        {60: 1.0, 70: 0.5, 100: 0.0},
    ),
    "the root of steps down to the final fraction": (
        Schedule(type="inverseSqrt", warmup=4, final_fraction=0.25),
        {2: 0.5, 4: 1.0, 16: 0.5, 64: 0.25, 100: 0.25},
    ),
    "REX": (Schedule(type="rex", final_fraction=0.0), {50: 2 / 3, 80: 1 / 3, 100: 0.0}),
    "a power": (
        Schedule(type="polynomial", final_fraction=0.2, polynomial=Polynomial(power=2)),
        {50: 0.4, 100: 0.2},
    ),
    "a power of one": (Schedule(type="polynomial", final_fraction=0.2), {50: 0.6, 100: 0.2}),
    "a separate length": (Schedule(type="linear", steps=50, final_fraction=0.0), {25: 0.5, 50: 0.0, 100: 0.0}),
    "shares of that length": (Schedule(type="linear", steps=50, warmup="20%"), {5: 0.5, 10: 1.0, 50: 0.1}),
    "a longer schedule than the training": (Schedule(type="linear", steps=200, final_fraction=0.0), {100: 0.5}),
    "cycles from the peak": (
        Schedule(type="linear", warmup=10, final_fraction=0.0, cycles=Cycles(count=2)),
        {5: 0.5, 10: 1.0, 30: 0.5, 50: 0.0, 51: 0.98, 75: 0.5, 100: 0.0},
    ),
    "cycles with warm-up": (
        Schedule(type="wsd", final_fraction=0.0, cycles=Cycles(count=4, warmup="20%"), wsd=Wsd(decay="40%")),
        {1: 1.0, 20: 0.5, 25: 0.0, 26: 0.2, 30: 1.0, 45: 0.5, 50: 0.0, 100: 0.0},
    ),
    "a last cycle with the rest of the steps": (
        Schedule(type="linear", final_fraction=0.0, cycles=Cycles(count=3)),
        {33: 0.0, 66: 0.0, 67: 1 - 1 / 34, 83: 0.5, 100: 0.0},
    ),
}


@pytest.mark.parametrize(("schedule", "want"), RATES.values(), ids=RATES.keys())
def test_learning_rate(schedule: Schedule, want: dict[int, float]) -> None:
    optimizer = Optimizer(learning_rate=2.0)

    seen = {step: float(learning_rate(jnp.int32(step), optimizer, schedule, jnp.int32(100))) for step in want}

    assert seen == pytest.approx({step: 2.0 * rate for step, rate in want.items()}, abs=1e-6)


def test_a_share_of_warmup_follows_the_number_of_steps_in_one_program() -> None:
    traces = []

    @jax.jit
    def rate(step: jax.Array, num_steps: jax.Array) -> jax.Array:
        traces.append(step)
        schedule = Schedule(type="constant", warmup="10%")
        return learning_rate(step, Optimizer(learning_rate=1.0), schedule, num_steps)

    seen = [float(rate(jnp.int32(5), jnp.int32(num_steps))) for num_steps in (100, 1000, 40, 100_000_000)]

    assert seen == pytest.approx([0.5, 0.05, 1.0, 5e-7])
    assert len(traces) == 1
