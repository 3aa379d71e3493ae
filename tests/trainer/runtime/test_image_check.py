"""Images without JAX for the platform of a job, and nodes without a driver for it."""

import ctypes
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from tests.support.trainer.tiny import make_config, make_spec, make_world
from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.protocol import FailureReason
from trainingjob_api.world import Span
from trainingjob_trainer import context
from trainingjob_trainer.runtime import image_check
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.image_check import check_image, read_driver_cuda

IMAGE, NODES = "spec.runtime.image", "spec.slices.accelerator"
CUDA13, CUDA12 = "jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"
KERNELS13, KERNELS12 = "jax_cuda13_plugin", "jax_cuda12_plugin"


class Pod(NamedTuple):
    """Entry points and modules of an image, and the newest CUDA version of its node's driver."""

    platform: str
    plugins: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    driver: tuple[int, int] | None = None


def make_pod(monkeypatch: pytest.MonkeyPatch, pod: Pod) -> None:
    entries = EntryPoints(EntryPoint(one, one, "jax_plugins") for one in pod.plugins)
    monkeypatch.setattr(image_check, "entry_points", lambda group: entries.select(group=group))
    monkeypatch.setattr(image_check, "find_spec", lambda name: name if name in pod.modules else None)
    monkeypatch.setattr(image_check, "read_driver_cuda", lambda: pod.driver)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)


FIT = {
    "CPUs": Pod("cpu"),
    "a TPU": Pod("tpu", modules=("libtpu",)),
    "a GPU": Pod("cuda", (CUDA13,), (KERNELS13,), (13, 0)),
    "a newer driver": Pod("cuda", (CUDA13,), (KERNELS13,), (14, 1)),
    "an image with CUDA 12": Pod("cuda", (CUDA12,), (KERNELS12,), (12, 4)),
    "an image with another plugin too": Pod("cuda", ("jax_plugins.xla_rocm", CUDA13), (KERNELS13,), (13, 2)),
}


@pytest.mark.parametrize("pod", FIT.values(), ids=FIT.keys())
def test_an_image_with_the_platform_passes(monkeypatch: pytest.MonkeyPatch, pod: Pod) -> None:
    make_pod(monkeypatch, pod)

    check_image(pod.platform, has_trained=False)


UNFIT = {
    "the CPU image on a TPU": (
        Pod("tpu", modules=(KERNELS13,)),
        IMAGE,
        "cannot use tpu: libtpu is not installed. Build an image that can with `make images PLATFORM=tpu`. Name it in",
    ),
    "the CPU image on a GPU": (
        Pod("cuda", driver=(13, 0)),
        IMAGE,
        "no CUDA plugin of JAX is installed. Build an image that can with `make images PLATFORM=cuda13`.",
    ),
    "the TPU image on a GPU": (Pod("cuda", modules=("libtpu",)), IMAGE, "no CUDA plugin of JAX is installed."),
    "half a plugin": (
        Pod("cuda", (CUDA13,), (), (13, 0)),
        IMAGE,
        "jax-cuda13-plugin, are not installed. Build an image that can with `make images PLATFORM=cuda13`",
    ),
    "no driver": (
        Pod("cuda", (CUDA13,), (KERNELS13,)),
        IMAGE,
        "libcuda.so.1 was not found, but CUDA 13 needs the NVIDIA driver 580 or later. The nodes must have it, and",
    ),
    "an old driver": (
        Pod("cuda", (CUDA13,), (KERNELS13,), (12, 8)),
        NODES,
        "the node's driver supports CUDA 12.8, but CUDA 13 needs the NVIDIA driver 580 or later. Upgrade",
    ),
    "two plugins, and a driver for the older one": (
        Pod("cuda", (CUDA12, CUDA13), (KERNELS12, KERNELS13), (12, 8)),
        NODES,
        "the node's driver supports CUDA 12.8, but CUDA 13",
    ),
    "a plugin of the future": (
        Pod("cuda", ("jax_plugins.xla_cuda14",), ("jax_cuda14_plugin",), (13, 0)),
        NODES,
        "CUDA 14 needs the NVIDIA driver of CUDA 14 or later.",
    ),
}


@pytest.mark.parametrize(("pod", "path", "words"), UNFIT.values(), ids=UNFIT.keys())
def test_an_image_without_the_platform_is_a_config_failure(
    monkeypatch: pytest.MonkeyPatch, pod: Pod, path: str, words: str
) -> None:
    make_pod(monkeypatch, pod)

    with pytest.raises(TrainingError) as caught:
        check_image(pod.platform, has_trained=False)

    assert words in str(caught.value)
    assert (caught.value.reason, caught.value.fatal, caught.value.path) == (FailureReason.CONFIG, True, path)


@pytest.mark.parametrize("driver", [None, (12, 8)])
def test_a_node_without_the_driver_of_the_others_is_a_failure_of_that_node(
    monkeypatch: pytest.MonkeyPatch, driver: tuple[int, int] | None
) -> None:
    make_pod(monkeypatch, Pod("cuda", (CUDA13,), (KERNELS13,), driver))

    with pytest.raises(TrainingError, match="Other nodes of the job had it") as caught:
        check_image("cuda", has_trained=True)

    assert (caught.value.reason, caught.value.fatal) == (FailureReason.ACCELERATOR, False)


def test_libtpu_may_be_a_file_that_a_variable_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    make_pod(monkeypatch, Pod("tpu"))
    monkeypatch.setenv("TPU_LIBRARY_PATH", str(tmp_path / "libtpu.so"))

    with pytest.raises(TrainingError):
        check_image("tpu", has_trained=False)
    (tmp_path / "libtpu.so").touch()
    check_image("tpu", has_trained=False)


@pytest.mark.parametrize(
    ("error", "number", "version"), [(0, 13020, (13, 2)), (34, 0, None)], ids=["of CUDA 13.2", "a stub for linkers"]
)
def test_the_driver_reports_its_version(
    monkeypatch: pytest.MonkeyPatch, error: int, number: int, version: tuple[int, int] | None
) -> None:
    def report(pointer: Any) -> int:
        pointer._obj.value = number
        return error

    libraries = {image_check.DRIVER_LIBRARY: SimpleNamespace(cuDriverGetVersion=report)}
    monkeypatch.setattr(ctypes, "CDLL", libraries.__getitem__)

    assert read_driver_cuda() == version


@pytest.mark.parametrize("library", ["libcuda-absent.so.1", "libc.so.6"])
def test_a_machine_without_a_driver_has_no_version(library: str) -> None:
    assert read_driver_cuda(library) is None


@pytest.mark.parametrize(("lineage", "has_trained"), [((), False), ((Span(generation=1, first=1),), True)])
def test_a_world_checks_the_image_before_it_reads_the_text(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lineage: tuple[Span, ...], has_trained: bool
) -> None:
    calls = []
    monkeypatch.setattr(context, "check_image", lambda platform, has_trained: calls.append((platform, has_trained)))
    monkeypatch.setattr(context, "prepare_datasets", lambda *given: calls.append("datasets") or 1 / 0)
    start = StartWorld(
        config=make_config(make_spec(tmp_path, tmp_path), platform="cuda"), world=make_world(2, 1, lineage), process=0
    )

    with pytest.raises(ZeroDivisionError):
        context.join_world(start, SimpleNamespace())  # type: ignore[arg-type]

    assert calls == [("cuda", has_trained), "datasets"]
