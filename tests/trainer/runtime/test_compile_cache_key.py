"""The compile-cache key: each input of a program changes it, and excluded settings change no program."""

import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import pytest
from pydantic import BaseModel

from tests.support.trainer.tiny import SECRET, make_config, make_layout, make_spec
from trainingjob_api.sample import SAMPLE
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.loader import batch_shape
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime import compile_cache_key as key_module
from trainingjob_trainer.runtime.compile_cache_key import (
    JAX_WITHOUT_EFFECT,
    PACKAGES,
    SPEC_WITHOUT_EFFECT,
    compile_cache_key,
    hash_libraries,
    hash_sources,
    jax_key,
    spec_key,
    variables_key,
)
from trainingjob_trainer.step import StepPrograms

hash_anew = hash_sources.__wrapped__
hash_libraries_anew = hash_libraries.__wrapped__


@pytest.fixture
def packages(tmp_path: Path) -> tuple[Path, ...]:
    """Copies of the packages whose modules shape programs."""
    copies = tuple(tmp_path / package.name for package in PACKAGES)
    for package, copy in zip(PACKAGES, copies, strict=True):
        shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copies


@pytest.mark.thorough
def test_a_change_of_a_module_of_any_folder_changes_the_key(packages: tuple[Path, ...]) -> None:
    modules = {path.parent: path for package in packages for path in sorted(package.rglob("*.py"))}.values()
    written = hash_anew(packages)
    hashes = {written}
    for module in modules:
        before = module.read_bytes()
        module.write_bytes(before + b"\n")
        hashes.add(hash_anew(packages))
        module.write_bytes(before)

    assert len(hashes) == len(modules) + 1
    assert {"models", "snapshots", "hlo_analysis", "checkpoint", "trainingjob_agent"} <= {
        path.parent.name for path in modules
    }
    assert hash_anew(packages) == written == hash_anew(PACKAGES)


def test_a_module_that_comes_goes_or_moves_changes_the_key(packages: tuple[Path, ...]) -> None:
    module = packages[-1] / "models" / "kernel.py"
    hashes = [hash_anew(packages)]
    module.write_text("")
    hashes.append(hash_anew(packages))
    module.rename(packages[-1] / "kernel.py")
    hashes.append(hash_anew(packages))
    (packages[-1] / "kernel.py").rename(packages[0] / "kernel.py")
    hashes.append(hash_anew(packages))
    (packages[0] / "kernel.py").rename(packages[0] / "table.json")
    hashes.append(hash_anew(packages))

    assert len(set(hashes)) == len(hashes)


def test_bytecode_of_a_module_does_not_change_the_key(packages: tuple[Path, ...]) -> None:
    before = hash_anew(packages)
    (packages[0] / "__pycache__").mkdir()
    (packages[0] / "__pycache__" / "run.cpython-312.pyc").write_bytes(b"code")

    assert hash_anew(packages) == before


def list_fields(model: BaseModel, path: str = "") -> Iterator[str]:
    """Return the paths of all fields that hold no further ones; the items of a list are no fields."""
    for name, field in type(model).model_fields.items():
        value, here = getattr(model, name), f"{path}{field.alias or name}"
        if isinstance(value, BaseModel):
            yield from list_fields(value, f"{here}.")
        else:
            yield here


def change(model: BaseModel, path: str) -> BaseModel:
    """Return a copy in which a field has a value that nothing else has."""
    first, _, rest = path.partition(".")
    (name,) = (name for name, field in type(model).model_fields.items() if (field.alias or name) == first)
    return model.model_copy(update={name: change(getattr(model, name), rest) if rest else "changed"})


FULL = TrainingJobSpec.model_validate(SAMPLE)
FIELDS = list(list_fields(FULL))


def is_listed(path: str) -> bool:
    return any(path == listed or path.startswith(f"{listed}.") for listed in SPEC_WITHOUT_EFFECT)


def test_each_field_of_the_spec_changes_the_key_unless_it_is_listed() -> None:
    written = spec_key(FULL)
    with warnings.catch_warnings(action="ignore"):  # no field has this value
        changing = {path for path in FIELDS if spec_key(change(FULL, path)) != written}  # type: ignore[arg-type]

    assert changing == {path for path in FIELDS if not is_listed(path)}
    assert len(changing) > 60
    assert {"model.rope.theta", "optimizer.learningRate", "training.seed", "protection.spikes.sigma"} <= changing


def test_a_field_that_may_change_while_the_job_trains_does_not_change_the_key() -> None:
    with warnings.catch_warnings(action="ignore"):  # no field has this value
        for path in ("training.steps", "slices.max", "checkpoint.save.everySteps", "elastic.policy", "suspend"):
            assert spec_key(change(FULL, path)) == spec_key(FULL)  # type: ignore[arg-type]


def find(described: Any, path: str) -> Any:
    for part in path.split("."):
        described = described.get(part)
    return described


class Lowered:
    """Lowers programs in place of `CompileCache`, and records their texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def compile_or_load(
        self, name: str, function: Any, arguments: Any, result: Any, *, once: bool = False, **options: Any
    ) -> Any:
        self.texts.append(jax.jit(function, **options).lower(*arguments).as_text())


def lower(spec: TrainingJobSpec) -> list[str]:
    layout, lowered = make_layout(), Lowered()
    steps = StepPrograms(spec, build_mesh(jax.devices()[: layout.num_devices], layout))
    steps.compile_init(lowered)  # type: ignore[arg-type]
    steps.compile_train(lowered, batch_shape(layout))  # type: ignore[arg-type]
    steps.compile_evaluate(lowered, batch_shape(layout))  # type: ignore[arg-type]
    return lowered.texts


@pytest.mark.thorough
def test_settings_without_effect_change_no_program(tmp_path: Path) -> None:
    """All listed fields at once: each other one of the two specs is the same."""
    plain = make_config(make_spec(tmp_path, tmp_path, protection={"spikes": {}})).spec
    written = plain.model_dump(by_alias=True)
    for path in SPEC_WITHOUT_EFFECT:
        *parents, last = path.split(".")
        of_plain, of_sample = written, SAMPLE
        for parent in parents:
            of_plain, of_sample = of_plain[parent], of_sample[parent]
        of_plain[last] = of_sample[last]
    written["slices"] |= {"count": 3, "min": 2, "max": 5}
    written["protection"]["maxRollbacks"] = 4
    written["suspend"] = True
    assert all(find(written, path) != find(plain.model_dump(by_alias=True), path) for path in SPEC_WITHOUT_EFFECT)
    other = TrainingJobSpec.model_validate(written)

    assert spec_key(other) == spec_key(plain)
    assert lower(other) == lower(plain)


def test_the_batch_of_samples_changes_the_key_and_their_texts_do_not(tmp_path: Path) -> None:
    def key(*samples: dict[str, Any]) -> Any:
        evaluation = [{"name": "a", "path": "/text", "everySteps": 5, "samples": samples}]
        return compile_cache_key(make_config(make_spec(tmp_path, tmp_path, evaluation=evaluation)), make_layout())

    assert key({"prompt": "one"}) == key({"prompt": "two", "temperature": 0.5})
    assert len({str(key(*one)) for one in ([], [{"prompt": "a"}], [{"prompt": "ab"}], [{"prompt": "a"}] * 2)}) == 4


def test_each_value_of_jaxs_configuration_changes_the_key_unless_it_is_listed() -> None:
    values = dict(jax.config.values)
    changing = {name for name in values if jax_key({**values, name: "changed"}) != jax_key(values)}

    assert changing == set(values) - set(JAX_WITHOUT_EFFECT)
    assert set(JAX_WITHOUT_EFFECT) <= set(values), "what is not there any more needs no reason"
    assert len(changing) > 80


CONFIGURATION: dict[str, Any] = {
    "jax_default_matmul_precision": "highest",
    "jax_enable_x64": True,
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_numpy_dtype_promotion": "strict",
    "jax_use_shardy_partitioner": False,
    "jax_debug_nans": True,
    "jax_random_seed_offset": 7,
    "jax_optimization_level": "O1",
}


@pytest.fixture
def describe(tmp_path: Path) -> Any:
    return lambda: compile_cache_key(make_config(make_spec(tmp_path, tmp_path)), make_layout())


@pytest.mark.parametrize("name", CONFIGURATION)
def test_the_configuration_of_the_process_changes_the_key(describe: Any, name: str) -> None:
    plain, before = describe(), getattr(jax.config, name)
    jax.config.update(name, CONFIGURATION[name])
    try:
        assert describe() != plain
    finally:
        jax.config.update(name, before)
    assert describe() == plain


SHAPING = {
    "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
    "LIBTPU_INIT_ARGS": "--xla_tpu_enable_async_collective_fusion=true",
    "NVIDIA_TF32_OVERRIDE": "0",
    "TF_CUDNN_DETERMINISTIC": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDNN_LOGINFO_DBG": "1",
    "CUDA_MODULE_LOADING": "EAGER",
    "PJRT_NAMES_AND_LIBRARY_PATHS": "other:/lib/other.so",
    "TPU_LIBRARY_PATH": "/lib/libtpu.so",
    "TPU_MEGACORE": "MEGACORE_DENSE",
    "TRITON_CACHE_DIR": "/tmp/triton",  # a value
    "XLA_CLIENT_MEM_FRACTION": "0.5",
    "JAX_OF_A_LATER_RELEASE": "1",
}
WITHOUT_EFFECT = {
    "XLA_FLAGS": "--xla_dump_to=/dumps/host-3 --xla_dump_hlo_as_text",
    "JAX_COORDINATOR_ADDRESS": "10.0.0.1:1234",
    "JAX_PROCESS_ID": "3",
    "JAX_COMPILATION_CACHE_DIR": "/cache",
    "JAX_PLATFORMS": "cpu",
    "TPU_WORKER_ID": "3",
    "TPU_WORKER_HOSTNAMES": "10.0.0.1,10.0.0.2",
    "TPU_VISIBLE_CHIPS": "0,1",
    "CUDA_VISIBLE_DEVICES": "3",
    "NVIDIA_VISIBLE_DEVICES": "GPU-2f",
    "NCCL_SOCKET_IFNAME": "eth3",
    "MEGASCALE_SLICE_ID": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TRAININGJOB_POD": "host-3",
    "HOSTNAME": "host-3",
}


@pytest.mark.parametrize("name", SHAPING)
def test_a_variable_that_compilers_read_changes_the_key(name: str) -> None:
    assert variables_key({name: SHAPING[name]}) != variables_key({})


@pytest.mark.parametrize("name", WITHOUT_EFFECT)
def test_a_variable_that_differs_between_processes_does_not_change_the_key(name: str) -> None:
    assert variables_key({name: WITHOUT_EFFECT[name]}) == variables_key({})


def test_flags_in_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    described = []
    for flags in ("--xla_a=1", "--xla_a=2", "--xla_a=2 --xla_dump_to=/x"):
        file.write_text(flags)
        described.append(variables_key({"XLA_FLAGS": str(file)}))

    assert described[0] != described[1] == described[2]
    assert variables_key({"XLA_FLAGS": "/not/there"}) != variables_key({})
    assert variables_key({"XLA_FLAGS": "--xla_a='1"}) != variables_key({})  # no quote ends it


def install(place: Path, name: str, record: str = "") -> None:
    (place / f"{name}.dist-info").mkdir()
    (place / f"{name}.dist-info" / "RECORD").write_text(record)


DISTRIBUTIONS = [
    ("jax-0.12.0", "jax-0.12.1"),
    ("libtpu-0.0.52", "libtpu-0.0.53"),
    ("jax_cuda13_plugin-0.12.0", "jax_cuda13_plugin-0.12.1"),
    ("jax_cuda13_pjrt-0.12.0", "jax_cuda13_pjrt-0.12.1"),
    ("nvidia_cudnn_cu13-9.1", "nvidia_cudnn_cu13-9.2"),
    ("ml_dtypes-0.5", "ml_dtypes-0.6"),
    ("a_kernel_that_is_not_written_yet-1", "a_kernel_that_is_not_written_yet-2"),
]


@pytest.mark.parametrize(("before", "after"), DISTRIBUTIONS)
def test_another_version_of_a_library_or_another_build_of_it_changes_the_key(
    tmp_path: Path, before: str, after: str
) -> None:
    hashes = [hash_libraries_anew((str(tmp_path),))]
    install(tmp_path, before, "module.so,sha256=1,5")
    hashes.append(hash_libraries_anew((str(tmp_path), "", "/not/there", str(tmp_path))))
    (tmp_path / f"{before}.dist-info").rename(tmp_path / f"{after}.dist-info")
    hashes.append(hash_libraries_anew((str(tmp_path),)))
    (tmp_path / f"{after}.dist-info" / "RECORD").write_text("module.so,sha256=2,5")
    hashes.append(hash_libraries_anew((str(tmp_path),)))

    assert len(set(hashes)) == len(hashes)


def test_a_device_and_its_runtime_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Client:
        platform_version = "cuda 13.0"

    class Device:
        device_kind = "NVIDIA H100"
        client = Client()

    monkeypatch.setattr(key_module.jax, "devices", lambda: [Device])
    config = make_config(make_spec(tmp_path, tmp_path), platform="cuda")
    described = [compile_cache_key(config, make_layout())["machine"]]
    Client.platform_version = "cuda 13.1"
    described.append(compile_cache_key(config, make_layout())["machine"])
    Device.device_kind = "NVIDIA H200"
    described.append(compile_cache_key(config, make_layout())["machine"])

    assert len({str(one) for one in described}) == 3


RELEASE = f"""
import logging, sys
from pathlib import Path
logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
import jax
jax.config.update("jax_num_cpu_devices", 2)
import jax.numpy as jnp
from tests.support.trainer.tiny import make_config, make_layout, make_spec
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.models.routed_mlp import __name__ as _
from trainingjob_trainer.optim.learning_rate import learning_rate
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
folder = Path(sys.argv[1])
config = make_config(make_spec(folder, folder))
programs = CompileCache(str(folder / "kept"), folder, config, make_layout(), ProcessGroup(0, 1), {SECRET!r})
spec = config.spec
rate = lambda step: learning_rate(step, spec.optimizer, spec.schedule, jnp.int32(6))
everywhere = jax.sharding.NamedSharding(build_mesh(jax.devices(), make_layout()), jax.sharding.PartitionSpec())
step = jax.device_put(jnp.int32(1), everywhere)
print("rate", float(programs.compile_or_load("rate", rate, (step,), 0, out_shardings=everywhere)(step)))
"""


@pytest.mark.slow
def test_program_of_an_edited_module_is_compiled_again(packages: tuple[Path, ...], tmp_path: Path) -> None:
    """As a release does that changes the model: with the same spec, and the folder of the release before."""

    def run() -> str:
        path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[3])])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-c", RELEASE, str(tmp_path / "run")],
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout

    first, again = run(), run()
    module = packages[-1] / "optim" / "learning_rate.py"
    source = module.read_text()
    name = "def learning_rate("
    assert name in source
    module.write_text(
        source.replace(name, "def _learning_rate(")
        + "\n\ndef learning_rate(*given):\n    return 100 + _learning_rate(*given)\n"
    )
    edited = run()

    assert "compiled a program name=rate" in first
    assert "loaded a compiled program name=rate" in again
    assert "compiled a program name=rate" in edited
    rates = [float(text.split("rate ")[-1]) for text in (first, again, edited)]
    assert rates[0] == rates[1] == pytest.approx(rates[2] - 100, abs=1e-4)
