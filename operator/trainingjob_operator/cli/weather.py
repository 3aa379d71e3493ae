"""What a cluster does to a simulated job: faults drawn by chance, the same for the same seed."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from trainingjob_operator.core.simulating.faults import Fault, Kind
from trainingjob_operator.core.simulating.life import NOTICE_SECONDS

DAY = 86_400


@dataclass(frozen=True)
class Mix:
    """Of what the faults of a cluster are made up."""

    kinds: Mapping[Kind, float]
    """How often each kind is among the faults of a slice, in relation to the others."""
    neighbours: float = 0.0
    """Share of the losses that take up to three slices beside the lost one too: a rack, a switch."""
    spread: float | None = None
    """The standard deviation of the logarithm of repair times, which are lognormal. None: they are exponential."""
    outages: float | None = None
    """Mean seconds between two outages of the operator. None: there are none."""


REPAIR_MEDIAN, REPAIR_SPREAD = "20h", 1.94
"""Repair times are heavy-tailed: half of them take hours, their mean is days, because parts are waited for.

A lognormal with the median (20.4 h) and the mean (5.5 days) of the 584 repairs of 400 GPU servers in 348 days that the
InfiniteHBD-Trace has (github.com/stepfun-ai/InfiniteHBD-Trace, arXiv:2502.03885).
"""
LOSSES = Mix({Kind.LOSS: 1.0})
EVERYTHING = Mix(
    {Kind.LOSS: 0.6, Kind.CRASH: 0.2, Kind.NOTICE: 0.1, Kind.HANG: 0.05, Kind.SILENCE: 0.05},
    neighbours=0.05,
    spread=REPAIR_SPREAD,
    outages=30.0 * DAY,
)
"""Round numbers of no cluster in particular: most faults take a machine, a fifth a program alone."""
SILENCE_SECONDS, OUTAGE_SECONDS = 60.0, 300.0
"""How long a host is cut off, and the operator is away, in the mean."""


@dataclass(frozen=True)
class Weather:
    """What a cluster does to slices. Seconds."""

    mtbf: float
    """Mean time between two faults of one slice."""
    repair: float
    """Median time until a lost slice has nodes again, or the mean where the mix has no spread."""
    length: float
    """How long is simulated."""
    seed: int
    mix: Mix = EVERYTHING


def mean_repair(weather: Weather) -> float:
    """Return the mean time until a lost slice has nodes again: of heavy-tailed times many medians."""
    return weather.repair * math.exp((weather.mix.spread or 0.0) ** 2 / 2)


def draw_faults(weather: Weather, num_slices: int) -> list[Fault]:
    """Return faults at exponentially distributed times; a slice fails only while it is there."""
    random = Random(weather.seed)  # noqa: S311  # no secret
    faults = [fault for number in range(num_slices) for fault in _strike(weather, number, num_slices, random)]
    if weather.mix.outages is not None:
        time = random.expovariate(1 / weather.mix.outages)
        while time < weather.length:
            faults.append(Fault(time, 0, random.expovariate(1 / OUTAGE_SECONDS), Kind.OUTAGE))
            time += random.expovariate(1 / weather.mix.outages)
    return faults


def _strike(weather: Weather, number: int, num_slices: int, random: Random) -> Iterator[Fault]:
    """Yield the faults of a slice, and those of others that come with them."""
    mix = weather.mix
    time = random.expovariate(1 / weather.mtbf)
    while time < weather.length:
        kind = random.choices([*mix.kinds], [*mix.kinds.values()])[0]
        away = _draw_length(weather, kind, random)
        yield Fault(time, number, away, kind)
        if kind is Kind.LOSS and random.random() < mix.neighbours:
            last = min(number + random.randint(1, 3), num_slices - 1)
            yield from (Fault(time, other, away, kind) for other in range(number + 1, last + 1))
        time += (NOTICE_SECONDS if kind is Kind.NOTICE else 0.0) + away + random.expovariate(1 / weather.mtbf)


def _draw_length(weather: Weather, kind: Kind, random: Random) -> float:
    match kind:
        case Kind.LOSS | Kind.NOTICE if weather.mix.spread is not None:
            return random.lognormvariate(math.log(weather.repair), weather.mix.spread)
        case Kind.LOSS | Kind.NOTICE:
            return random.expovariate(1 / weather.repair)
        case Kind.SILENCE:
            return random.expovariate(1 / SILENCE_SECONDS)
        case _:
            return 0.0
