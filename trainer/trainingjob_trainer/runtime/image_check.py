"""Image check: the image must hold JAX for the platform of the job, and the node must have a driver for that JAX.

It reads the installed packages and asks the driver for its version, in milliseconds and without a device. So a job with
the wrong image ends before it tokenizes text, and before its hosts wait for each other.
"""

import ctypes
import os
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import jax

from trainingjob_api.images import build_command, chart_value
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.runtime.errors import TrainingError

DRIVER_LIBRARY = "libcuda.so.1"
MIN_DRIVERS = {12: "525", 13: "580"}
"""Oldest driver of each major version of CUDA, by the CUDA Toolkit Release Notes on minor version compatibility."""


def check_image(platform: str, *, has_trained: bool) -> None:
    """Check that this pod's image and driver can run a platform of JAX: `cpu`, `tpu` or `cuda`.

    `has_trained`: the job has trained in another world. Then a missing driver is a fault of this node.

    Raises:
        TrainingError: the image lacks the platform, or the driver is missing or too old.
    """
    if platform == "tpu" and not _has_libtpu():
        raise image_error(platform, "libtpu is not installed")
    if platform == "cuda":
        cuda = _find_cuda_plugin()
        if not cuda:
            raise image_error(platform, "no CUDA plugin of JAX is installed")
        if find_spec(f"jax_cuda{cuda}_plugin") is None:
            raise image_error(platform, f"JAX's CUDA kernels, jax-cuda{cuda}-plugin, are not installed")
        _check_driver(cuda, read_driver_cuda(), has_trained=has_trained)


def image_error(platform: str, problem: str) -> TrainingError:
    """Return the error for an image whose JAX cannot use a platform."""
    return TrainingError(
        FailureReason.CONFIG,
        f"the image's JAX {jax.__version__} cannot use {platform}: {problem}. Build an image that can with "
        f"`{build_command(platform)}`. Name it in `spec.runtime.image` or the chart's `{chart_value(platform)}`.",
        path="spec.runtime.image",
    )


def read_driver_cuda(library: str = DRIVER_LIBRARY) -> tuple[int, int] | None:  # None: no driver was found
    """Return the newest CUDA version that the node's driver supports, as major and minor number.

    The source of the encoding is the CUDA Driver API, `cuDriverGetVersion`: 1000 x major + 10 x minor.
    """
    version = ctypes.c_int()
    try:
        error = ctypes.CDLL(library).cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if error else (version.value // 1000, version.value % 1000 // 10)


def _check_driver(cuda: int, found: tuple[int, int] | None, *, has_trained: bool) -> None:
    if found is not None and found[0] >= cuda:
        return
    requirement = f"CUDA {cuda} needs the NVIDIA driver {MIN_DRIVERS.get(cuda, f'of CUDA {cuda}')} or later"
    if found is None:
        path = "spec.runtime.image"
        message = (
            f"{DRIVER_LIBRARY} was not found, but {requirement}. The nodes must have it, and the image must name its "
            f"folder in LD_LIBRARY_PATH, as that of `{build_command('cuda')}` does."
        )
    else:
        path = "spec.slices.accelerator"
        message = (
            f"the node's driver supports CUDA {found[0]}.{found[1]}, but {requirement}. "
            "Upgrade the driver of the nodes."
        )
    if has_trained:
        raise TrainingError(FailureReason.ACCELERATOR, f"{message} Other nodes of the job had it.", fatal=False)
    raise TrainingError(FailureReason.CONFIG, message, path=path)


def _has_libtpu() -> bool:
    """Return whether JAX finds libtpu: as a package, or where TPU_LIBRARY_PATH says."""
    path = os.environ.get("TPU_LIBRARY_PATH", "")
    return bool(path and Path(path).exists()) or find_spec("libtpu") is not None


def _find_cuda_plugin() -> int:
    """Return the newest major version of CUDA for which a plugin of JAX is installed. 0: none."""
    names = " ".join(entry.value for entry in entry_points(group="jax_plugins"))
    return max(map(int, re.findall(r"xla_cuda(\d+)", names)), default=0)
