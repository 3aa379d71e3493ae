"""Joining a world: the settings of JAX before, and the error if the devices differ."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.meeting import together
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.runtime import process_group as world_module
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import (
    GLOO_NICE,
    ProcessGroup,
    configure,
    connect,
    list_threads,
    lower_gloo_priority,
)


def test_other_devices_than_the_layout_has_are_a_config_failure() -> None:
    words = "expected 2 devices on this host and 2 in the world .* found 8 and 8"
    with pytest.raises(TrainingError, match=words) as caught:
        connect(make_world(1, 1), 0, make_layout(), "cpu")

    assert (caught.value.reason, caught.value.fatal, caught.value.path) == (
        FailureReason.CONFIG,
        True,
        "spec.slices.topology",
    )


@pytest.mark.parametrize(
    "error",
    [AssertionError(), RuntimeError("Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: no file")],
    ids=["no plugin for cuda", "no libtpu"],
)
def test_an_image_without_the_platform_is_a_config_failure(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    with pytest.raises(TrainingError, match=r"cannot use cuda: .*`make images PLATFORM=cuda13`") as caught:
        connect_where(monkeypatch, error)

    assert (caught.value.reason, caught.value.path) == (FailureReason.CONFIG, "spec.runtime.image")


def test_other_errors_of_the_devices_are_reported_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="no such device"):
        connect_where(monkeypatch, RuntimeError("CUDA_ERROR_NO_DEVICE: no such device"))


def connect_where(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Join a world of one GPU on a machine whose devices cannot be counted."""

    def count() -> int:
        raise error

    monkeypatch.setattr(jax, "local_device_count", count)
    connect(make_world(1, 1), 0, make_layout(), "cuda")


def test_processes_exchange_their_runtime_indices() -> None:
    indices, devices = (2, 0, 1), [SimpleNamespace(process_index=index) for index in (0, 0, 1, 1, 2, 2)]

    def act(peers: ProcessGroup) -> tuple[list[int], list[int]]:
        peers.exchange_runtime_indices(indices[peers.process], 1)
        return [peers.runtime_index(process) for process in range(3)], [peers.process_of(device) for device in devices]  # type: ignore[arg-type]

    assert together(3, act) == [([2, 0, 1], [1, 1, 2, 2, 0, 0])] * 3


def test_a_process_joins_with_the_number_that_the_runtime_gave_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "process_index", lambda: 3)
    monkeypatch.setattr(world_module, "check_devices", lambda *world: None)

    peers = connect(make_world(1, 1), 0, make_layout(devices_per_host=8), "cpu")

    assert (peers.process, peers.runtime_index(0)) == (0, 3)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Record the settings of JAX from this process, and hide the machine's shared memory."""
    settings: dict[str, Any] = {}
    monkeypatch.setattr(jax.config, "update", settings.__setitem__)
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(world_module, "SHARED_MEMORY", tmp_path)
    return settings


def test_leftovers_of_nccl_after_a_killed_child_are_deleted(settings: dict[str, Any], tmp_path: Path) -> None:
    for name in ("nccl-x1y2z3", "nccl-a4b5c6", "other"):
        (tmp_path / name).touch()

    configure("cuda", make_layout())

    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_leftovers_of_an_ended_world_are_removed_before_jax_initializes(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(os, "environ", {"MEGASCALE_NUM_SLICES": "2", "MEGASCALE_SLICE_ID": "1", "HOME": "/tmp"})

    configure("tpu", make_layout(), make_world(1, 1), 0)

    assert os.environ == {"HOME": "/tmp", "TPU_WORKER_ID": "0", "TPU_WORKER_HOSTNAMES": "localhost"}
    assert settings["jax_platforms"] == "tpu"
    assert "jax_num_cpu_devices" not in settings


def test_the_first_thread_without_a_name_that_came_meanwhile_gives_way() -> None:
    own, ends = Path("/proc/self/comm").read_text().strip(), threading.Event()

    def begin(name: str) -> int:
        def live() -> None:
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
            begun.set()
            ends.wait()

        begun = threading.Event()
        thread = threading.Thread(target=live)
        thread.start()
        begun.wait()
        assert thread.native_id
        return thread.native_id

    known = begin(own)
    before = list_threads()
    named, first, second = begin("compute"), begin(own), begin(own)
    was = os.getpriority(os.PRIO_PROCESS, known)

    lower_gloo_priority(before)
    seen = [os.getpriority(os.PRIO_PROCESS, thread) for thread in (known, named, first, second)]
    ends.set()

    assert seen == [was, was, max(was, GLOO_NICE), was]


@pytest.mark.slow
def test_of_a_trainer_s_threads_the_transport_s_alone_gives_way(
    crew: Crew, tmp_path: Path, text: Path, programs: Path
) -> None:
    config = make_config(make_spec(tmp_path / "run", text, training__steps=10_000))

    trainers = crew.start(config, make_world(1, 2), programs)

    for trainer in trainers:
        trainer.wait_for_step(1)
    assert [trainer.num_giving_way for trainer in trainers] == [1, 1]
