"""The expected speed of a step: the roofline's, times the share of it that published training runs reach.

Real steps are slower than peak rates allow: matmuls reach about 80 % of their peak, kernels have gaps, and collectives
overlap only in part. The share differs by generation more than by model, so each generation has one share. It is the
middle of the shares of published runs, which `tests/core/planner/test_calibration.py` plans one by one. It scales all
candidates of a job equally, so that it changes no choice.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from trainingjob_operator.core.planner.plan import SliceShape
from trainingjob_operator.core.planner.roofline import Roofline

REACHED: Mapping[str, float] = {
    "nvidia-h100": 0.5,
    "nvidia-h100-mega": 0.5,
    "nvidia-h200": 0.5,
    "tpu-v5p": 0.65,
    "tpu-v6e": 0.52,
    "tpu-v7x": 0.62,
}
"""Share of the roofline's speed that published runs reach, by accelerator."""
REACHED_BY_PLATFORM: Mapping[str, float] = {"cuda": 0.5, "tpu": 0.6, "cpu": 0.5}
"""The share for accelerators of which no published run is known."""


@dataclass(frozen=True)
class Expectation:
    """The expected speed of one step."""

    seconds: float
    mfu: float
    reached: float
    """Share of the roofline's speed."""
    is_calibrated: bool
    """Whether published runs on this accelerator are known. Otherwise, the share is that of others on its platform."""


def expect(roofline: Roofline, shape: SliceShape) -> Expectation:
    """Return the expected speed of a step."""
    known = REACHED.get(shape.accelerator)
    reached = known or REACHED_BY_PLATFORM[shape.platform]
    return Expectation(roofline.seconds / reached, roofline.mfu * reached, reached, known is not None)
