"""Fault model of the simulator: random faults of a cluster, reproducible by seed."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from trainingjob_operator.core.simulate.faults import Fault, FaultKind, sort_faults
from trainingjob_operator.core.simulate.simulated_job import NOTICE_SECONDS

DAY = 86_400


@dataclass(frozen=True)
class FaultMix:
    """Composition of a cluster's faults."""

    kinds: Mapping[FaultKind, float]
    """Relative frequency of each kind among the faults of a slice."""
    neighbour_share: float = 0.0
    """Share of slice losses that also take up to three following slices, as when a rack or a switch fails."""
    repair_sigma: float | None = None
    """Standard deviation of the logarithm of lognormal repair times. None: repair times are exponential."""
    outage_interval: float | None = None
    """Mean seconds between two outages of the operator. None: no outages."""


REPAIR_MEDIAN, REPAIR_SPREAD = "20h", 1.94
"""Repair times are heavy-tailed: half of them take hours, but the mean is days, because of waits for parts.

A lognormal distribution with the median (20.4 h) and the mean (5.5 days) of the 584 repairs of 400 GPU servers in 348
days in the InfiniteHBD-Trace (github.com/stepfun-ai/InfiniteHBD-Trace, arXiv:2502.03885).
"""
LOSSES_ONLY = FaultMix({FaultKind.LOSS: 1.0})
DEFAULT_MIX = FaultMix(
    {FaultKind.LOSS: 0.6, FaultKind.CRASH: 0.2, FaultKind.NOTICE: 0.1, FaultKind.HANG: 0.05, FaultKind.SILENCE: 0.05},
    neighbour_share=0.05,
    repair_sigma=REPAIR_SPREAD,
    outage_interval=30.0 * DAY,
)
"""Round numbers, not those of a particular cluster: most faults take a machine, a fifth only a program."""
MEAN_SILENCE_SECONDS, MEAN_OUTAGE_SECONDS = 60.0, 300.0
"""Mean seconds of a host's disconnection, and of an operator outage."""


@dataclass(frozen=True)
class FaultModel:
    """Fault model of a cluster. Times are in seconds."""

    mtbf: float
    """Mean time between two faults of one slice."""
    repair: float
    """Median time until a lost slice has nodes again, or the mean if the mix has no spread."""
    simulated_seconds: float
    """Simulated time."""
    seed: int
    mix: FaultMix = DEFAULT_MIX


def mean_repair(fault_model: FaultModel) -> float:
    """Return the mean repair time of a slice. For heavy-tailed times it is many times the median."""
    return fault_model.repair * math.exp((fault_model.mix.repair_sigma or 0.0) ** 2 / 2)


def draw_faults(fault_model: FaultModel, num_slices: int) -> list[Fault]:
    """Return faults at exponentially distributed times, in order. A slice fails only while it has nodes."""
    random = Random(fault_model.seed)  # noqa: S311  # no secret
    slice_faults = [
        fault for number in range(num_slices) for fault in _draw_slice_faults(fault_model, number, num_slices, random)
    ]
    faults = list(_drop_ineffective(sort_faults(slice_faults)))
    if fault_model.mix.outage_interval is not None:
        time = random.expovariate(1 / fault_model.mix.outage_interval)
        while time < fault_model.simulated_seconds:
            faults.append(Fault(time, 0, random.expovariate(1 / MEAN_OUTAGE_SECONDS), FaultKind.OUTAGE))
            time += random.expovariate(1 / fault_model.mix.outage_interval)
    return sort_faults(faults)


def _draw_slice_faults(fault_model: FaultModel, number: int, num_slices: int, random: Random) -> Iterator[Fault]:
    """Yield the faults of one slice, and the losses of neighbours that they cause."""
    mix = fault_model.mix
    time = random.expovariate(1 / fault_model.mtbf)
    while time < fault_model.simulated_seconds:
        kind = random.choices([*mix.kinds], [*mix.kinds.values()])[0]
        duration = _draw_duration(fault_model, kind, random)
        yield Fault(time, number, duration, kind)
        if kind is FaultKind.LOSS and random.random() < mix.neighbour_share:
            last_neighbour = min(number + random.randint(1, 3), num_slices - 1)
            yield from (Fault(time, neighbour, duration, kind) for neighbour in range(number + 1, last_neighbour + 1))
        time += (
            (NOTICE_SECONDS if kind is FaultKind.NOTICE else 0.0) + duration + random.expovariate(1 / fault_model.mtbf)
        )


def _drop_ineffective(faults: Sequence[Fault]) -> Iterator[Fault]:
    """Yield the faults of slices that have nodes. A fault of a neighbour can also take a slice."""
    repairs: dict[int, tuple[float, float]] = {}
    for fault in faults:
        begin, end = repairs.get(fault.slice, (0.0, 0.0))
        if begin <= fault.at < end:
            continue
        yield fault
        if fault.kind in (FaultKind.LOSS, FaultKind.NOTICE):
            begin = fault.at + (NOTICE_SECONDS if fault.kind is FaultKind.NOTICE else 0.0)
            repairs[fault.slice] = begin, begin + fault.repair_seconds


def _draw_duration(fault_model: FaultModel, kind: FaultKind, random: Random) -> float:
    match kind:
        case FaultKind.LOSS | FaultKind.NOTICE if fault_model.mix.repair_sigma is not None:
            return random.lognormvariate(math.log(fault_model.repair), fault_model.mix.repair_sigma)
        case FaultKind.LOSS | FaultKind.NOTICE:
            return random.expovariate(1 / fault_model.repair)
        case FaultKind.SILENCE:
            return random.expovariate(1 / MEAN_SILENCE_SECONDS)
        case _:
            return 0.0
