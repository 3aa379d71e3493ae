"""Install the lock of each trainer image into a throwaway environment, and use what it installed.

`python -m tools.check_images tpu cuda13` needs the package index and several GB of disk, but no device. It proves that
all files of a lock exist with their hashes, that the packages fit together and import, that libtpu compiles a program
for a TPU, and that JAX lowers one for CUDA. It does not prove that a device runs them.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tools.images import ROOT, ImageError, list_images
from tools.sbom import lock_path
from trainingjob_api.images import TRAINER_REPOSITORIES

SETUP = """
import flax, jax, optax, orbax.checkpoint
import jax.numpy as jnp
import trainingjob_agent.host, trainingjob_trainer.main
program = jax.jit(lambda x: jnp.tanh(x @ x).sum())
shape = (512, 512)
"""
PROBES = {
    "cpu": """
assert program(jnp.zeros(shape)) == 0
print("a program ran on the CPU")
""",
    "tpu": """
import libtpu
from jax.experimental import topologies
from jax.sharding import SingleDeviceSharding
from trainingjob_trainer.runtime.image_check import check_image
check_image("tpu", has_trained=False)
device = topologies.get_topology_desc("v5e:2x2", platform="tpu").devices[0]
x = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=SingleDeviceSharding(device))
size = program.lower(x).compile().memory_analysis().argument_size_in_bytes
assert size >= 512 * 512 * 2
print(f"libtpu {libtpu.__version__} compiled a program for {device.device_kind}")
""",
    "cuda13": """
import jax_cuda13_plugin
import jax_plugins.xla_cuda13
from jaxlib.plugin_support import import_from_plugin
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.image_check import check_image, read_driver_cuda
assert import_from_plugin("cuda", "_versions") is not None
try:
    check_image("cuda", has_trained=False)
except TrainingError as error:
    assert read_driver_cuda() is None and "libcuda.so.1 was not found" in str(error), error
text = program.trace(jax.ShapeDtypeStruct(shape, jnp.bfloat16)).lower(lowering_platforms=("cuda",)).as_text()
assert "stablehlo.dot_general" in text
print("the plugin of CUDA 13 imports, and a program lowers for cuda")
""",
}
"""What to run in the environment of each platform. Its devices are CPUs."""
WITHOUT_DEVICES = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",  # there is no metadata server
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}
"""Variables for machines without devices."""


def check(platform: str, folder: Path) -> None:
    """Install and use the lock of a platform's image in an empty folder.

    Raises:
        ImageError: the platform has no image.
        CalledProcessError: a package cannot be installed, or does not do what it must.
    """
    lock = lock_path(list_images(platform)[1])
    python = folder / "bin/python"
    uv = [sys.executable, "-m", "uv", "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, str(folder)], check=True)
    subprocess.run(
        [*uv, "pip", "install", f"--python={python}", "--no-deps", "--require-hashes", "-r", lock], check=True
    )
    subprocess.run([*uv, "pip", "check", f"--python={python}"], check=True)
    run_probe(platform, python, folder)


def run_probe(platform: str, python: Path, folder: Path) -> None:
    """Use the packages of an environment for a platform, in a process whose working directory is `folder`.

    Raises:
        CalledProcessError: a package does not do what it must.
    """
    path = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator", "trainer"))
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHON"))}
    environment = {**inherited, **WITHOUT_DEVICES, "PYTHONPATH": path}
    subprocess.run([python, "-c", SETUP + PROBES[platform]], cwd=folder, env=environment, check=True)


def main(arguments: list[str]) -> int:
    """Check the locks of the platforms, by default all; return the exit code."""
    try:
        for platform in arguments or TRAINER_REPOSITORIES:
            with tempfile.TemporaryDirectory(prefix="trainingjob-image-") as folder:
                print(f"{platform}: installing", flush=True)
                check(platform, Path(folder))
    except ImageError as error:
        print(error, file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"{platform}: `{' '.join(map(str, error.cmd[:2]))}` failed: see its output above.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
