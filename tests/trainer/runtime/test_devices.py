"""Errors of a world whose devices differ from its layout."""

from types import SimpleNamespace

import jax
import pytest

from tests.support.trainer.tiny import make_layout, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Span
from trainingjob_trainer.runtime.devices import check_devices
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup

FULL = 2
"""Devices of a host, as the layout has them."""
ALIKE = ProcessGroup(0, 2).runtime_index
TRAINED = (Span(generation=1, first=1),)
type Row = tuple[dict[int, int], tuple[Span, ...], FailureReason, str]
"""Devices of each process, the lineage of the world, and what is said."""
CASES: dict[str, Row] = {
    "this host lacks one, in the first world": (
        {0: 1, 1: FULL},
        (),
        FailureReason.ACCELERATOR,
        "this host has 1 of 2 devices",
    ),
    "all lack one alike, where the job has trained": (
        {0: 1, 1: 1},
        TRAINED,
        FailureReason.ACCELERATOR,
        "this host has 1 of 2 devices",
    ),
    "all lack one alike, in the first world": (
        {0: 1, 1: 1},
        (),
        FailureReason.CONFIG,
        "expected 2 devices on this host and 4 in the world of 2 slices, found 1 and 2",
    ),
    "another host lacks one": ({0: FULL, 1: 1}, (), FailureReason.PEER, "process 1 has 1 of 2 devices"),
    "another host has none": ({0: FULL}, TRAINED, FailureReason.PEER, "process 1 has 0 of 2 devices"),
    "there are more, where the job has trained": (
        {0: FULL, 1: FULL + 1},
        TRAINED,
        FailureReason.CONFIG,
        "found 2 and 5",
    ),
    "there are more hosts": ({0: FULL, 1: FULL, 2: FULL}, (), FailureReason.CONFIG, "found 2 and 6"),
    "there are more hosts, and one has none": ({0: FULL, 2: FULL}, TRAINED, FailureReason.CONFIG, "found 2 and 4"),
}


@pytest.mark.parametrize(("found", "lineage", "reason", "words"), CASES.values(), ids=CASES.keys())
def test_missing_devices_are_distinguished_from_a_wrong_topology(
    monkeypatch: pytest.MonkeyPatch,
    found: dict[int, int],
    lineage: tuple[Span, ...],
    reason: FailureReason,
    words: str,
) -> None:
    give(monkeypatch, found)

    with pytest.raises(TrainingError, match=words) as caught:
        check_devices(make_world(2, 2, lineage), 0, make_layout(num_slices=2), ALIKE)

    is_config = reason is FailureReason.CONFIG
    assert (caught.value.reason, caught.value.fatal) == (reason, is_config)
    assert caught.value.path == ("spec.slices.topology" if is_config else "")


def test_a_world_that_has_them_all_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, {0: FULL, 1: FULL})

    check_devices(make_world(2, 2), 0, make_layout(num_slices=2), ALIKE)


@pytest.mark.parametrize(
    ("process", "reason", "words"),
    [(1, FailureReason.ACCELERATOR, "this host has 1 of 2"), (0, FailureReason.PEER, "process 1 has 1 of 2")],
    ids=["itself", "another"],
)
def test_host_without_devices_is_found_if_the_runtime_numbers_processes_differently(
    monkeypatch: pytest.MonkeyPatch, process: int, reason: FailureReason, words: str
) -> None:
    give(monkeypatch, {0: 1, 1: FULL})

    with pytest.raises(TrainingError, match=words) as caught:
        check_devices(make_world(2, 2), process, make_layout(num_slices=2), lambda host: 1 - host)

    assert caught.value.reason is reason


def give(monkeypatch: pytest.MonkeyPatch, found: dict[int, int]) -> None:
    """Give each process a number of devices."""
    everyone = [SimpleNamespace(process_index=host, device_kind="GPU") for host in found for _ in range(found[host])]
    monkeypatch.setattr(jax, "devices", lambda: everyone)
