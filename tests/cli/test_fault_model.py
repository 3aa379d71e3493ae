"""Faults that are drawn for a simulation."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest

from trainingjob_operator.cli.fault_model import (
    DAY,
    DEFAULT_MIX,
    LOSSES_ONLY,
    REPAIR_MEDIAN,
    FaultModel,
    draw_faults,
    mean_repair,
)
from trainingjob_operator.cli.simulate import parse_span
from trainingjob_operator.core.simulate.faults import FaultKind


def test_slices_fail_at_the_given_rate_and_never_while_they_are_lost() -> None:
    faults = draw_faults(FaultModel(mtbf=10.0, repair=1.0, simulated_seconds=11_000.0, seed=1, mix=LOSSES_ONLY), 3)

    assert len(faults) == pytest.approx(3000, rel=0.1)
    assert {fault.kind for fault in faults} == {FaultKind.LOSS}
    for number in range(3):
        own = [fault for fault in faults if fault.slice == number]
        assert all(one.at + one.repair_seconds <= next_one.at for one, next_one in pairwise(own))


def test_a_fault_of_a_neighbour_takes_no_slice_that_is_gone() -> None:
    mix = replace(DEFAULT_MIX, neighbour_share=1.0)

    faults = draw_faults(FaultModel(mtbf=10 * DAY, repair=DAY / 2, simulated_seconds=2000 * DAY, seed=1, mix=mix), 4)

    assert [fault.at for fault in faults] == sorted(fault.at for fault in faults)
    assert max(Counter(fault.at for fault in faults).values()) > 1, "neighbours are lost together"
    for number in range(4):
        own = [fault for fault in faults if fault.slice == number and fault.kind is not FaultKind.OUTAGE]
        losses = [fault for fault in own if fault.kind is FaultKind.LOSS]
        assert len(losses) > 50
        for loss in losses:
            assert not [fault for fault in own if loss.at < fault.at < loss.at + loss.repair_seconds]


def test_faults_come_in_the_mix_that_is_promised() -> None:
    weather = FaultModel(mtbf=86_400.0, repair=3600.0, simulated_seconds=1000 * 86_400.0, seed=1)
    faults = draw_faults(weather, 8)
    kinds = Counter(fault.kind for fault in faults)
    together = Counter(fault.at for fault in faults)
    drawn = len(together) - kinds[FaultKind.OUTAGE]

    assert kinds[FaultKind.OUTAGE] == pytest.approx(1000 / 30, rel=0.3)
    for kind, share in DEFAULT_MIX.kinds.items():
        assert len({fault.at for fault in faults if fault.kind is kind}) == pytest.approx(share * drawn, rel=0.15)
    assert max(together.values()) in (2, 3, 4)
    assert max(fault.repair_seconds for fault in faults) > 2 * 86_400
    assert all(fault.slice < 8 for fault in faults)


def test_the_same_seed_draws_the_same_faults() -> None:
    weathers = [FaultModel(86_400.0, 3600.0, 8_640_000.0, seed) for seed in (1, 1, 2)]
    first, again, other = (draw_faults(weather, 4) for weather in weathers)

    assert first == again
    assert first != other


def test_repairs_take_hours_in_the_median_and_days_in_the_mean() -> None:
    median = parse_span(REPAIR_MEDIAN, "--repair")
    weather = FaultModel(30 * DAY, median, 3000 * DAY, seed=3)

    faults = draw_faults(weather, 64)

    away = sorted(fault.repair_seconds for fault in faults if fault.kind in (FaultKind.LOSS, FaultKind.NOTICE))
    assert away[len(away) // 2] / 3600 == pytest.approx(20, rel=0.15)
    assert sum(away) / len(away) / DAY == pytest.approx(5.5, rel=0.3)
    assert mean_repair(weather) / DAY == pytest.approx(5.5, abs=0.1)
    assert mean_repair(replace(weather, mix=LOSSES_ONLY)) == median
