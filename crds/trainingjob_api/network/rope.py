"""Rotary position embeddings (Su et al., arXiv 2104.09864): their options and frequencies."""

import math
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, CelRule, Example, Unit, alternatives


class Llama3Scaling(Strict):
    """Wavelengths between which the scaling of Llama 3.1 interpolates (Grattafiori et al., arXiv 2407.21783)."""

    low_frequency: Annotated[float, Field(gt=0, le=1024), Unit("rotations"), Example(1.0)] = Field(
        default=1.0, description="Rotations over `originalLength` below which a frequency is divided by `factor`."
    )
    high_frequency: Annotated[float, Field(gt=0, le=1024), Unit("rotations"), Example(4.0)] = Field(
        default=4.0, description="Rotations over `originalLength` above which a frequency is kept."
    )


class YarnScaling(Strict):
    """Options of YaRN (Peng et al., arXiv 2309.00071)."""

    beta_fast: Annotated[float, Field(gt=0, le=1024), Unit("rotations"), Example(32.0)] = Field(
        default=32.0, description="Rotations over `originalLength` above which a frequency is kept."
    )
    beta_slow: Annotated[float, Field(gt=0, le=1024), Unit("rotations"), Example(1.0)] = Field(
        default=1.0, description="Rotations over `originalLength` below which a frequency is divided by `factor`."
    )
    truncate: Annotated[bool, Example(True)] = Field(
        default=True, description="Widens the range between both to whole pairs of features."
    )
    attention_factor: Annotated[Annotated[float, Field(gt=0, le=100)] | None, NO_UNIT, Example(1.0)] = Field(
        default=None,
        description="Factor on rotated queries and keys. Unset: 0.1 ln(`factor`) + 1, as YaRN recommends.",
    )


class RopeScaling(Strict):
    """Change of the frequencies, which makes a model usable at longer sequences than it was trained with."""

    type: Annotated[Literal["linear", "llama3", "yarn"], Example("llama3")] = Field(
        description="Kind of scaling: `linear` divides all frequencies, `llama3` and `yarn` only the low ones."
    )
    factor: Annotated[float, Field(ge=1, le=1024), NO_UNIT, Example(8.0)] = Field(
        description="Factor by which low frequencies are divided: the longer length divided by the original one."
    )
    original_length: Annotated[Annotated[int, Field(ge=1, le=10000000)] | None, Unit("tokens"), Example(8192)] = Field(
        default=None,
        description="Sequence length of the training before the scaling. `llama3` and `yarn` require it.",
    )
    llama3: Llama3Scaling | None = Field(default=None, description="Options of `llama3` scaling.")
    yarn: YarnScaling | None = Field(default=None, description="Options of `yarn` scaling.")

    cel_rules: ClassVar[tuple[CelRule, ...]] = alternatives("llama3", "yarn")


class Rope(Strict):
    """Rotary position embeddings of queries and keys."""

    theta: Annotated[float, Field(ge=1, le=1e9), NO_UNIT, Example(10000.0)] = Field(
        default=10000.0, description="Base of the rotary position frequencies."
    )
    fraction: Annotated[float, Field(gt=0, le=1), Unit("of a head"), Example(1.0)] = Field(
        default=1.0, description="Share of the features of a head that are rotated, beginning with the first."
    )
    interleaved: Annotated[bool, Example(False)] = Field(
        default=False,
        description="Rotates pairs of neighboring features, as in DeepSeek, instead of one of each half of a head.",
    )
    scaling: RopeScaling | None = Field(
        default=None, description="Change of the frequencies for long sequences. Unset: none."
    )

    def rotated_dim(self, head_dim: int) -> int:
        """Return the number of rotated features of a head."""
        return int(head_dim * self.fraction)

    def frequencies(self, head_dim: int) -> tuple[float, ...]:
        """Return the angle per position of each pair of features, in radians."""
        dim = self.rotated_dim(head_dim)
        unscaled = [self.theta ** (-2 * pair / dim) for pair in range(dim // 2)]
        scaling = self.scaling
        if scaling is None:
            return tuple(unscaled)
        if scaling.type == "linear":
            return tuple(frequency / scaling.factor for frequency in unscaled)
        kept_shares = _llama3_shares(scaling, unscaled) if scaling.type == "llama3" else self._yarn_shares(scaling, dim)
        return tuple(
            frequency * share + frequency / scaling.factor * (1 - share)
            for frequency, share in zip(unscaled, kept_shares, strict=True)
        )

    @property
    def attention_factor(self) -> float:
        """Return the factor on rotated queries and keys."""
        if self.scaling is None or self.scaling.type != "yarn":
            return 1.0
        return (self.scaling.yarn or YarnScaling()).attention_factor or 0.1 * math.log(self.scaling.factor) + 1

    def _yarn_shares(self, scaling: RopeScaling, dim: int) -> list[float]:
        """Return the share of each frequency that is kept: 1 for fast ones, 0 for slow ones, and a ramp between."""
        options = scaling.yarn or YarnScaling()

        def pair_with(rotations: float) -> float:
            return dim * math.log(_length(scaling) / (rotations * math.tau)) / (2 * math.log(self.theta))

        low, high = pair_with(options.beta_fast), pair_with(options.beta_slow)
        if options.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        width = high - low or 0.001  # a step instead of a ramp
        return [1 - min(max((pair - low) / width, 0), 1) for pair in range(dim // 2)]


def _llama3_shares(scaling: RopeScaling, frequencies: Sequence[float]) -> list[float]:
    """Return the share of each frequency that is kept, by its rotations over the original length."""
    options = scaling.llama3 or Llama3Scaling()
    rotations = [_length(scaling) * frequency / math.tau for frequency in frequencies]
    width = options.high_frequency - options.low_frequency or 1e-9  # a step instead of a ramp
    return [min(max((turns - options.low_frequency) / width, 0), 1) for turns in rotations]


def _length(scaling: RopeScaling) -> int:
    return scaling.original_length or 1  # validation rejects its absence
