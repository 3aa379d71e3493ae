"""Before a new pod trains: devices that are right pass, and one that is wrong is named."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.trainer.meeting import together
from tests.trainer.tiny import make_config, make_layout, make_spec
from trainingjob_api.machine import AxisDegrees
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer import preflight
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.mesh import build_mesh
from trainingjob_trainer.preflight import PATTERNS, SIZE, Vitals, check_world, digest, find_unfit
from trainingjob_trainer.programs import Programs
from trainingjob_trainer.world import Peers

LAYOUT = make_layout(
    num_slices=2, hosts_per_slice=1, devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2), dcn=AxisDegrees(data=2)
)


def check(tmp_path: Path, platform: str = "cpu", *, is_proven: bool = False) -> None:
    config = make_config(make_spec(tmp_path, tmp_path))
    peers = Peers(0, 1)
    programs = Programs("", tmp_path, config, LAYOUT, peers)
    check_world(build_mesh(jax.devices(), LAYOUT), programs, peers, platform, is_proven=is_proven)


def test_devices_that_are_right_pass(tmp_path: Path) -> None:
    check(tmp_path)


def test_the_digest_sees_every_element() -> None:
    row = np.arange(SIZE, dtype=np.uint32)[:, None]
    weights = row * np.uint32(2654435761) + row.T * np.uint32(40503) + np.uint32(1)

    assert np.all(weights != 0), "an element of weight 0 could hold anything"
    assert len({int(digest(np.uint32(seed), np)) for seed in range(PATTERNS)}) == PATTERNS


def test_a_device_that_computes_wrongly_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: Any, xp: Any) -> Any:
        right = digest(seed, xp)
        return right if xp is np else right + (seed == 5)

    monkeypatch.setattr(preflight, "digest", broken)
    with pytest.raises(TrainingError, match=r"device 5 of this host .* multiplies wrongly") as caught:
        check(tmp_path)

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.ACCELERATOR, False)


def test_a_host_that_is_well_blames_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Peers, "exchange", lambda self, name, text, seconds: (text, "1"))
    config = make_config(make_spec(tmp_path, tmp_path))
    peers = Peers(0, 2)

    with pytest.raises(TrainingError, match="another host") as caught:
        preflight.check_arithmetic(
            build_mesh(jax.devices(), LAYOUT), Programs("", tmp_path, config, LAYOUT, peers), peers
        )

    assert caught.value.reason is FailureReason.PEER


def test_a_sum_that_comes_out_wrong_is_nobodys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = jax.lax.psum
    monkeypatch.setattr(jax.lax, "psum", lambda number, axes: add(number, axes) ^ 4)

    with pytest.raises(TrainingError, match="the network between the hosts") as caught:
        check(tmp_path)

    assert caught.value.reason is FailureReason.NETWORK


def test_hosts_that_have_trained_before_are_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_arithmetic", lambda *_: pytest.fail("asked"))

    check(tmp_path, is_proven=True)


def test_all_are_asked_where_one_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(preflight, "check_arithmetic", lambda mesh, *_: asked.append(mesh))

    def take_part(peers: Peers) -> None:
        check_world(peers.process, None, peers, "cpu", is_proven=peers.process != 1)  # type: ignore[arg-type]

    together(3, take_part)

    assert sorted(asked) == [0, 1, 2]


def test_a_device_that_falls_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_measure", lambda device: Vitals(4e12 if device.id == 6 else 200e12, 70e9))

    with pytest.raises(TrainingError, match=r"device 6 of this host multiplies matrices at 4 TFLOP/s") as caught:
        check(tmp_path, "cuda")

    assert caught.value.reason is FailureReason.ACCELERATOR


def test_a_device_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "RATE_SIZE", 64)  # a processor would take seconds
    rate, free = preflight._measure(jax.devices()[0])

    assert rate > 0
    assert free >= 0


WELL = Vitals(200e12, 70e9)
FITNESS: dict[str, tuple[Sequence[Vitals], str]] = {
    "all alike": ([WELL, WELL], ""),
    "a little slower": ([WELL, WELL._replace(rate=120e12)], ""),
    "far slower": ([WELL, WELL._replace(rate=40e12)], "device 1 of this host multiplies matrices at 40 TFLOP/s"),
    "memory in use": ([WELL._replace(free=30e9), WELL], "device 0 of this host has free memory of 0.03 TB"),
    "nothing is known": ([Vitals(0, 0), Vitals(0, 0)], ""),
}


@pytest.mark.parametrize(("own", "words"), FITNESS.values(), ids=FITNESS)
def test_fitness_is_judged_by_the_others(own: Sequence[Vitals], words: str) -> None:
    found = find_unfit(own, [*own, WELL, WELL, WELL])

    assert found.startswith(words)
    assert bool(found) == bool(words)
