"""Before a new pod trains: devices that are right pass, and one that is wrong is named."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.meeting import together
from tests.support.trainer.tiny import make_config, make_layout, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import ExpectedHardware
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime import preflight
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.preflight import (
    MATRIX_SIZE,
    NUM_PATTERNS,
    DeviceCapabilities,
    check_world,
    find_slow_network,
    find_unfit,
    matmul_digest,
)
from trainingjob_trainer.runtime.process_group import ProcessGroup

LAYOUT = make_layout(
    num_slices=2, hosts_per_slice=1, devices_per_host=4, ici=AxisDegrees(fsdp=2, tensor=2), dcn=AxisDegrees(data=2)
)


NOTHING = ExpectedHardware()
H100 = ExpectedHardware(flops=989e12, link=450e9, network=200e9, memory=60_000_000_000)


def check(
    tmp_path: Path,
    platform: str = "cpu",
    expected: ExpectedHardware = NOTHING,
    *,
    is_proven: bool = False,
    on_probation: bool = False,
) -> None:
    config = make_config(make_spec(tmp_path, tmp_path))
    peers = ProcessGroup(0, 1)
    programs = CompileCache("", tmp_path, config, LAYOUT, peers)
    mesh = build_mesh(jax.devices(), LAYOUT)
    check_world(
        mesh,
        programs,
        peers,
        platform,
        expected,
        num_slices=2,
        has_trained=is_proven,
        on_probation=on_probation,
    )


def test_devices_that_are_right_pass(tmp_path: Path) -> None:
    check(tmp_path)


def test_the_digest_sees_every_element() -> None:
    row = np.arange(MATRIX_SIZE, dtype=np.uint32)[:, None]
    weights = row * np.uint32(2654435761) + row.T * np.uint32(40503) + np.uint32(1)

    assert np.all(weights != 0), "an element of weight 0 could hold anything"
    assert len({int(matmul_digest(np.uint32(seed), np)) for seed in range(NUM_PATTERNS)}) == NUM_PATTERNS


def test_a_device_that_computes_wrongly_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(seed: Any, xp: Any) -> Any:
        right = matmul_digest(seed, xp)
        return right if xp is np else right + (seed == 5)

    monkeypatch.setattr(preflight, "matmul_digest", broken)
    with pytest.raises(TrainingError, match=r"device 5 of this host .* multiplies wrongly") as caught:
        check(tmp_path)

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.ACCELERATOR, False)


def test_device_on_probation_computes_all_products(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the short check, device 0 computes the first product only."""

    def broken(seed: Any, xp: Any) -> Any:
        right = matmul_digest(seed, xp)
        return right if xp is np else right + (seed == NUM_PATTERNS - 1)

    monkeypatch.setattr(preflight, "matmul_digest", broken)
    monkeypatch.setattr(preflight, "check_arithmetic", lambda *_: None)
    check(tmp_path)
    with pytest.raises(TrainingError, match=r"device 0 of this host .* multiplies wrongly") as caught:
        check(tmp_path, on_probation=True)

    assert caught.value.reason is FailureReason.ACCELERATOR


def test_device_on_probation_is_checked_under_load_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, loads = iter(range(100)), []
    monkeypatch.setattr(preflight, "RATE_SIZE", 8)
    monkeypatch.setattr(preflight, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    monkeypatch.setattr(preflight, "_multiply", lambda ones: loads.append(ones.device) or ones)

    preflight.check_under_load(4.0)

    assert len(loads) == 3 * len(jax.local_devices())
    assert {*loads} == {*jax.local_devices()}


def test_healthy_host_blames_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessGroup, "exchange", lambda self, name, text, seconds: (text, "1"))
    config = make_config(make_spec(tmp_path, tmp_path))
    peers = ProcessGroup(0, 2)

    with pytest.raises(TrainingError, match="another host") as caught:
        preflight.check_arithmetic(
            build_mesh(jax.devices(), LAYOUT), CompileCache("", tmp_path, config, LAYOUT, peers), peers
        )

    assert caught.value.reason is FailureReason.PEER


def test_a_sum_that_comes_out_wrong_is_nobodys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = jax.lax.psum
    monkeypatch.setattr(jax.lax, "psum", lambda number, axes: add(number, axes) ^ 4)

    with pytest.raises(TrainingError, match="the network between the hosts") as caught:
        check(tmp_path)

    assert caught.value.reason is FailureReason.NETWORK


def test_preflight_is_skipped_for_hosts_that_have_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_arithmetic", lambda *_: pytest.fail("asked"))

    check(tmp_path, is_proven=True)


def test_preflight_runs_on_all_hosts_if_one_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    requested: list[int] = []
    monkeypatch.setattr(preflight, "check_arithmetic", lambda mesh, *_: requested.append(mesh))

    def take_part(peers: ProcessGroup) -> None:
        mesh: Any = peers.process
        programs: Any = None
        check_world(mesh, programs, peers, "cpu", NOTHING, num_slices=3, has_trained=peers.process != 1)

    together(3, take_part)

    assert sorted(requested) == [0, 1, 2]


def test_a_device_that_falls_behind_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        preflight, "_measure_device", lambda device: DeviceCapabilities(4e12 if device.id == 6 else 200e12, 70e9)
    )

    with pytest.raises(TrainingError, match=r"device 6 of this host multiplies matrices at 4 TFLOP/s") as caught:
        check(tmp_path, "cuda")

    assert caught.value.reason is FailureReason.ACCELERATOR


def test_a_device_can_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "RATE_SIZE", 64)  # a processor would take seconds
    rate, free, limit = preflight._measure_device(jax.devices()[0])

    assert rate > 0
    assert min(free, limit) >= 0


def test_the_sum_over_all_devices_can_be_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "ALL_REDUCE_BYTES", 1024)
    programs = CompileCache("", tmp_path, make_config(make_spec(tmp_path, tmp_path)), LAYOUT, ProcessGroup(0, 1))

    assert preflight._measure_all_reduce(build_mesh(jax.devices(), LAYOUT), programs) > 0


def test_a_sum_that_is_far_too_slow_is_nobodys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_measure_device", lambda device: WELL)
    monkeypatch.setattr(preflight, "_measure_all_reduce", lambda mesh, programs: 1e9)

    with pytest.raises(TrainingError, match=r"add up 1 GB/s, and the network between slices should carry") as caught:
        check(tmp_path, "cuda", H100)

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.NETWORK, False)


def test_the_fastest_figure_of_a_sum_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "check_arithmetic", lambda *_: None)
    monkeypatch.setattr(preflight, "_measure_device", lambda device: WELL)
    rates = iter((1e9, 150e9))
    monkeypatch.setattr(preflight, "_measure_all_reduce", lambda mesh, programs: next(rates))

    def take_part(peers: ProcessGroup) -> None:
        none: Any = None
        check_world(none, none, peers, "cuda", H100, num_slices=2, has_trained=False)

    together(2, take_part)


@pytest.mark.parametrize(("left", "is_told"), [(0, True), (1 << 50, False)])
def test_host_without_separate_devices_warns_of_little_memory_and_trains(
    left: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "available_memory", lambda: left)

    check(tmp_path, "cpu", ExpectedHardware(memory=1000))

    assert any("less memory left" in line for line in caplog.messages) is is_told


@pytest.mark.parametrize(("rate", "is_told"), [(99e9, True), (101e9, False)])
def test_a_network_below_half_of_its_planned_rate_is_warned_of(
    rate: float, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(preflight, "_measure_device", lambda device: WELL)
    monkeypatch.setattr(preflight, "_measure_all_reduce", lambda mesh, programs: rate)

    check(tmp_path, "cuda", NOTHING.model_copy(update={"network": 200e9, "link": 900e9}))

    told = [line for line in caplog.messages if line.startswith("slow network: ")]
    assert bool(told) == is_told
    assert all("add up 99 GB/s, and the network between slices should carry 200 GB/s" in line for line in told)


SUMS: dict[str, tuple[float, ExpectedHardware, int, str]] = {
    "as it should be": (100e9, H100, 2, ""),
    "slow between slices": (9e9, H100, 2, "the network between slices should carry 200 GB/s"),
    "slow inside a slice": (20e9, H100, 1, "the links inside a slice should carry 450 GB/s"),
    "one device": (0.0, H100, 1, ""),
    "nothing is known": (1.0, NOTHING, 2, ""),
    "the network between slices is unknown": (1e9, H100.model_copy(update={"network": 0.0}), 2, ""),
    "the links inside a slice are unknown": (1e9, H100.model_copy(update={"link": 0.0}), 2, ""),
}


@pytest.mark.parametrize(("rate", "expected", "num_slices", "words"), SUMS.values(), ids=SUMS)
def test_a_sum_is_judged_by_the_slowest_network_of_its_world(
    rate: float, expected: ExpectedHardware, num_slices: int, words: str
) -> None:
    found = find_slow_network(rate, expected, num_slices)

    assert words in found
    assert bool(found) == bool(words)


WELL = DeviceCapabilities(200e12, 70e9)
FITNESS: dict[str, tuple[Sequence[DeviceCapabilities], str]] = {
    "all alike": ([WELL, WELL], ""),
    "a little slower": ([WELL, WELL._replace(flops_per_second=120e12)], ""),
    "far slower": (
        [WELL, WELL._replace(flops_per_second=40e12)],
        "device 1 of this host multiplies matrices at 40 TFLOP/s",
    ),
    "memory in use": ([WELL._replace(free_bytes=30e9), WELL], "device 0 of this host has free memory of 0.03 TB"),
    "nothing is known": ([DeviceCapabilities(0, 0), DeviceCapabilities(0, 0)], ""),
}


@pytest.mark.parametrize(("own", "words"), FITNESS.values(), ids=FITNESS)
def test_fitness_is_judged_by_the_others(own: Sequence[DeviceCapabilities], words: str) -> None:
    found = find_unfit(own, [*own, WELL, WELL, WELL], NOTHING)

    assert found.startswith(words)
    assert bool(found) == bool(words)


SLOW = DeviceCapabilities(90e12, 70e9, 75e9)
UNIFORM: dict[str, tuple[DeviceCapabilities, str]] = {
    "as they should be": (DeviceCapabilities(500e12, 70e9, 75e9), ""),
    "all slow alike": (SLOW, "device 0 of this host multiplies matrices at 90 TFLOP/s, and its kind does 989 at best"),
    "all too small": (
        DeviceCapabilities(500e12, 39e9, 40e9),
        "device 0 of this host has 40 GB of memory for programs, and the",
    ),
    "nothing is known": (DeviceCapabilities(500e12, 0, 0), ""),
}


@pytest.mark.parametrize(("device", "words"), UNIFORM.values(), ids=UNIFORM)
def test_fitness_is_judged_by_what_the_plan_counts_on_too(device: DeviceCapabilities, words: str) -> None:
    found = find_unfit([device], [device] * 8, H100)

    assert found.startswith(words)
    assert bool(found) == bool(words)
