"""The devices to compile for: virtual CPU devices, or a TPU topology that libtpu knows without a TPU."""

import os
from collections.abc import Sequence

import jax
from jax.experimental import topologies

from trainingjob_api.world import Layout, RunConfig

TPU = "tpu-"
TOPOLOGY_NAMES = {"tpu-v7x": "tpu7x"}
"""What libtpu calls an accelerator; the others are `v5e` for `tpu-v5e`."""
CHIP_CONFIGS = {"tpu-v4": "megacore"}
"""How libtpu joins the cores of a chip to one device, as on a host. It does so by itself for other accelerators."""
_SURROUNDINGS = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server to ask which TPU this machine has
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no device is taken, so that others may compile too
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


class NoCompilerError(Exception):
    """This machine has no compiler for the job's accelerator. The text says what to install."""


def prepare(config: RunConfig) -> None:
    """Set up JAX for compilation only. To be called before anything touches a device."""
    jax.config.update("jax_platforms", "cpu")  # what compiles for a TPU runs on none
    if config.accelerator_platform == "cpu":
        jax.config.update("jax_num_cpu_devices", max(layout.num_devices for layout in config.layouts))
    elif config.accelerator_platform == "tpu":
        for name, value in _SURROUNDINGS.items():
            os.environ.setdefault(name, value)


def find_devices(config: RunConfig, layout: Layout) -> Sequence[jax.Device]:
    """Return the devices of one size of a job.

    Raises:
        NoCompilerError: there is no compiler for them here.
    """
    if config.accelerator_platform == "cpu":
        return jax.devices()[: layout.num_devices]
    slices = config.spec.slices
    if config.accelerator_platform != "tpu" or not slices.accelerator.startswith(TPU):
        raise NoCompilerError(
            f"{slices.accelerator}: only cpu and TPUs can be compiled for without the device; on a machine that has "
            "one, `trainingjob run` compiles what it trains."
        )
    name = name_topology(slices.accelerator, slices.topology)
    config_name = CHIP_CONFIGS.get(slices.accelerator)
    options = {"chip_config_name": config_name} if config_name else {}
    try:
        return topologies.get_topology_desc(name, platform="tpu", num_slices=layout.num_slices, **options).devices
    except Exception as error:  # JAX has no error of its own for this
        raise NoCompilerError(_explain(name, error)) from error


def name_topology(accelerator: str, topology: str) -> str:
    """Return the name that libtpu has for a slice of TPUs."""
    return f"{TOPOLOGY_NAMES.get(accelerator, accelerator.removeprefix(TPU))}:{topology}"


def _explain(name: str, error: Exception) -> str:
    text = " ".join(str(error).split())
    if "libtpu" in text or "not found" in text.lower():
        return f"libtpu, the TPU compiler, is not installed: `pip install 'trainingjob[tpu-compile]'` ({text[:200]})"
    return f"libtpu knows no TPU {name}: {text[:300]}"
