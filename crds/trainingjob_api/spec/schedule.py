"""The schedule section: the learning rate over the steps."""

from typing import Annotated, Any, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit, alternatives
from trainingjob_api.shares import StepCount, resolve_steps

Fraction = Annotated[float, Field(ge=0, le=1)]


class Wsd(Strict):
    """Decay of `type: wsd`, which ends each cycle (MiniCPM, arXiv 2404.06395)."""

    decay: Annotated[StepCount, Unit("optimizer steps"), Example("20%")] = Field(
        default="10%", description="Length of the decay: a number of steps, or a share of the cycle such as `10%`."
    )
    shape: Annotated[Literal["linear", "cosine", "sqrt"], Example("sqrt")] = Field(
        default="linear", description="Shape of the decay. `sqrt` falls fastest at its start (arXiv 2405.18392)."
    )


class Polynomial(Strict):
    """Decay of `type: polynomial`."""

    power: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(2.0)] = Field(
        default=1.0, description="Power of the remaining share of the decay. 1 is `linear`."
    )


class Cycles(Strict):
    """Repetitions of warm-up and decay, which divide the length of the schedule equally."""

    count: Annotated[int, Field(ge=2, le=1000), NO_UNIT, Example(2)] = Field(
        description="Number of warm-ups and decays in the training."
    )
    warmup: Annotated[StepCount, Unit("optimizer steps"), Example("1%")] = Field(
        default=0,
        description="Warm-up of all cycles but the first: a number of steps, or a share of the cycle. 0 starts them "
        "at the peak.",
    )


class Schedule(Strict):
    """The learning rate over the steps: a linear warm-up from 0, then the decay to `finalFraction` of the peak."""

    type: Annotated[
        Literal["constant", "linear", "cosine", "wsd", "inverseSqrt", "rex", "polynomial"], Example("cosine")
    ] = Field(
        default="cosine",
        description="Shape after the warm-up: `wsd` stays at the peak and decays at the end; `rex` is that of arXiv "
        "2107.04197. `inverseSqrt` is the root of warm-up by step, but at least `finalFraction`.",
    )
    warmup: Annotated[StepCount, Unit("optimizer steps"), Example(100)] = Field(
        default=0,
        description="Length of the linear warm-up: a number of steps, or a share of the cycle such as `1%`. A share "
        "follows an edit of `training.steps` and is rounded down.",
    )
    final_fraction: Annotated[Fraction, Unit("share of the peak learning rate"), Example(0.1)] = Field(
        default=0.1, description="Learning rate of the last step, as a share of the peak. `constant` ignores it."
    )
    steps: Annotated[Annotated[int, Field(ge=1, le=100_000_000)] | None, Unit("optimizer steps"), Example(10_000)] = (
        Field(
            default=None,
            description="Length of the schedule: shares count it, and later steps keep the last rate. Unset: "
            "`training.steps`, so that an edit of it stretches the curve.",
            exclude_if=lambda steps: steps is None,  # an agent before 0.1 refuses a field that it does not know
        )
    )
    wsd: Wsd | None = Field(
        default=None,
        description="Decay of `type: wsd`. Unset: the defaults of its fields.",
        exclude_if=lambda wsd: wsd is None,
    )
    polynomial: Polynomial | None = Field(
        default=None,
        description="Decay of `type: polynomial`. Unset: the defaults of its fields.",
        exclude_if=lambda polynomial: polynomial is None,
    )
    cycles: Cycles | None = Field(
        default=None,
        description="Repetitions of warm-up and decay. Unset: there is one cycle.",
        exclude_if=lambda cycles: cycles is None,
    )

    cel_rules = alternatives("wsd", "polynomial")

    def length(self, num_steps: Any) -> Any:
        """Return the length of the schedule in a training of so many steps: an int, or a traced int32."""
        return self.steps or num_steps

    def cycle_steps(self, num_steps: Any) -> Any:
        """Return the length of a cycle."""
        return divide_cycles(self.length(num_steps), self.cycles)

    def warmup_steps(self, num_steps: Any) -> Any:
        """Return the length of the first warm-up."""
        return resolve_steps(self.warmup, self.cycle_steps(num_steps))

    def later_warmup_steps(self, num_steps: Any) -> Any:
        """Return the length of the warm-up of all cycles but the first."""
        return resolve_steps(self.cycles.warmup if self.cycles else 0, self.cycle_steps(num_steps))

    def decay_steps(self, num_steps: Any) -> Any:
        """Return the length of the decay of `type: wsd`."""
        return resolve_steps((self.wsd or Wsd()).decay, self.cycle_steps(num_steps))


def divide_cycles(length: Any, cycles: Cycles | None) -> Any:
    """Return the length of each cycle of a schedule, rounded down. The last one has the rest of the steps too."""
    return length // (cycles.count if cycles else 1)
