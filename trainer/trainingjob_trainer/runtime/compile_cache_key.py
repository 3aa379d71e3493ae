"""Compile-cache key: everything on which a compiled program depends.

A key that misses an input loads a program that trains a wrong model, without any message. The key therefore holds
everything except what is listed here as having no effect, with a reason. A key that holds too much only costs a
compilation.

The key is the same on all hosts of a world, and in each process of a host: the standby, the trainer, the hot standby,
and the process that compiles ahead of time. Values that differ between these, such as a process number, must not enter.
"""

import hashlib
import os
import platform
import shlex
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jax

import trainingjob_agent
import trainingjob_api
import trainingjob_trainer
from trainingjob_api.decoding import find_decoding_shape
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.variables import SLICE_VARIABLES, WORLD_VARIABLES
from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.runtime.entrypoint_module import load_entrypoint
from trainingjob_trainer.runtime.processor import describe_processor

PACKAGES = tuple(Path(package.__path__[0]) for package in (trainingjob_api, trainingjob_agent, trainingjob_trainer))
"""The packages whose modules shape programs."""
SPEC_WITHOUT_EFFECT = {
    "slices.count": "the layout has the size of the world",
    "slices.min": "the layout has the size of the world",
    "slices.max": "the layout has the size of the world",
    "slices.allowed": "the layout has the size of the world",
    "data.train": "texts reach a program as its arguments",
    "data.shuffle": "texts reach a program as its arguments",
    "data.fillInTheMiddle": "texts reach a program as its arguments",
    "data.temperature": "texts reach a program as its arguments",
    "data.prepare": "decides where texts are tokenized",
    "data.weightSchedule": "texts reach a program as its arguments",
    "tokenizer": "texts reach a program as its arguments; model.vocabSize is part of the key",
    "training.steps": "the number of steps reaches a program as an argument",
    "training.epochs": "the number of steps reaches a program as an argument",
    "training.stopAtLoss": "the training program compares a loss that evaluations return",
    "checkpoint": "decides when programs run and what becomes of their results",
    "elastic": "decides when worlds form; drills reach a program as an argument",
    "protection.nonFinite": "decides what follows from the metrics of a step",
    "protection.compareReplicas": "decides when a program runs",
    "protection.maxRollbacks": "decides what follows from the metrics of a step",
    "evaluation": "texts reach a program as its arguments; the key has the batch of the samples, and the name of a "
    "program the batch of its evaluations",
    "metrics": "decides what becomes of the results of programs",
    "profiling": "decides which steps are traced",
    "runtime": "image and variables act through sources, libraries, flags and configuration, which are in the key",
    "scheduling": "decides where pods run",
    "suspend": "decides when worlds form",
    "ttlSecondsAfterFinished": "only the operator reads it",
    "activeDeadlineSeconds": "only the operator reads it",
}
"""Fields and sections of the spec that shape no program, with the reason. The tests prove it for each."""
SET_BY_WORLD = "follows from platform and layout, which are in the key"
JAX_CACHE_OFF = "JAX's own cache, which is off"
LOGGING_ONLY = "decides what is logged, dumped or shown"
PER_PROCESS = "differs between processes or hosts, and shapes no program"
JAX_WITHOUT_EFFECT = {
    "jax_platforms": SET_BY_WORLD,
    "jax_platform_name": SET_BY_WORLD,
    "jax_num_cpu_devices": SET_BY_WORLD,
    "jax_cpu_collectives_implementation": SET_BY_WORLD,
    "jax_enable_preemption_service": SET_BY_WORLD,
    "jax_check_proxy_envs": SET_BY_WORLD,
    "jax_cpu_get_local_topology_timeout_minutes": PER_PROCESS,
    "jax_cpu_get_global_topology_timeout_minutes": PER_PROCESS,
    "jax_cuda_visible_devices": PER_PROCESS,
    "jax_rocm_visible_devices": PER_PROCESS,
    "jax_oneapi_visible_devices": PER_PROCESS,
    "jax_cross_host_transfer_socket_address": PER_PROCESS,
    "jax_cross_host_transport_addresses": PER_PROCESS,
    "jax_mtls_ca_file": PER_PROCESS,
    "jax_mtls_cert_file": PER_PROCESS,
    "jax_mtls_key_file": PER_PROCESS,
    "jax_mtls_peer_uri_prefix": PER_PROCESS,
    "jax_enable_compilation_cache": JAX_CACHE_OFF,
    "jax_compilation_cache_check_contents": JAX_CACHE_OFF,
    "jax_compilation_cache_dir": JAX_CACHE_OFF,
    "jax_compilation_cache_expect_pgle": JAX_CACHE_OFF,
    "jax_compilation_cache_include_metadata_in_key": JAX_CACHE_OFF,
    "jax_compilation_cache_max_size": JAX_CACHE_OFF,
    "jax_persistent_cache_enable_xla_caches": JAX_CACHE_OFF,
    "jax_persistent_cache_min_compile_time_secs": JAX_CACHE_OFF,
    "jax_persistent_cache_min_entry_size_bytes": JAX_CACHE_OFF,
    "jax_raise_persistent_cache_errors": JAX_CACHE_OFF,
    "jax_share_binary_between_hosts": JAX_CACHE_OFF,
    "jax_share_binary_between_hosts_timeout_ms": JAX_CACHE_OFF,
    "jax_explain_cache_misses": LOGGING_ONLY,
    "jax_log_compiles": LOGGING_ONLY,
    "jax_log_checkpoint_residuals": LOGGING_ONLY,
    "jax_logging_level": LOGGING_ONLY,
    "jax_debug_log_modules": LOGGING_ONLY,
    "jax_compiler_detailed_logging_min_ops": LOGGING_ONLY,
    "jax_distributed_debug": LOGGING_ONLY,
    "jax_dump_ir_to": LOGGING_ONLY,
    "jax_dump_ir_modes": LOGGING_ONLY,
    "jax_include_debug_info_in_dumps": LOGGING_ONLY,
    "jax_pprint_use_color": LOGGING_ONLY,
    "jax_traceback_filtering": LOGGING_ONLY,
    "jax_tracer_error_num_traceback_frames": LOGGING_ONLY,
}
"""JAX configuration values that shape no program, with the reason."""
VARIABLE_PREFIXES = (
    "CUBLAS",
    "CUDA_",
    "CUDNN",
    "DNNL_",
    "JAX_",
    "LIBTPU_",
    "MLIR_",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_",
    "PJRT_",
    "TF_",
    "TPU_",
    "TRITON_",
    "XLA_",
)
"""Name prefixes of the environment variables that compilers and their libraries read."""
VARIABLES_WITHOUT_EFFECT = {
    **dict.fromkeys((*WORLD_VARIABLES, *SLICE_VARIABLES), PER_PROCESS),
    "CUDA_CACHE_": "the driver's own cache",
    "CUDA_DEVICE_ORDER": PER_PROCESS,
    "CUDA_VISIBLE_DEVICES": PER_PROCESS,
    "TF_CPP_": LOGGING_ONLY,
    "TPU_LOG_DIR": LOGGING_ONLY,
    "TPU_MIN_LOG_LEVEL": LOGGING_ONLY,
    "TPU_STDERR_LOG_LEVEL": LOGGING_ONLY,
    "TPU_VMODULE": LOGGING_ONLY,
}
"""Those name prefixes that shape no program, with the reason. NCCL's variables act when a program runs."""
DUMP_FLAG_PREFIX = "--xla_dump_"
"""Prefix of the XLA flags that only choose what is dumped, and where."""
XLA_FLAGS = "XLA_FLAGS"


def compile_cache_key(config: RunConfig, layout: Layout) -> dict[str, Any]:
    """Return the key as JSON: everything that decides what a program compiles to. Call it after `configure`."""
    return {
        **hash_modules(),
        "python": platform.python_version(),
        "spec": spec_key(config.spec),
        "samples": str(find_decoding_shape(config.spec)),
        "layout": layout.model_dump(mode="json"),
        "platform": config.accelerator_platform,
        "machine": _target_key(config.accelerator_platform),
        "jax": jax_key(jax.config.values),
        "variables": variables_key(os.environ),
        **entrypoint_key(config.spec),
    }


def entrypoint_key(spec: TrainingJobSpec) -> dict[str, Any]:
    """Return what the function of `program.entrypoint` may read: its sources, and the variables of the job."""
    if not spec.program:
        return {}
    variables = [variable.model_dump(mode="json") for variable in spec.runtime.env]
    return {"entrypoint": [load_entrypoint(spec.program).sources_hash, variables]}


def hash_modules() -> dict[str, str]:
    """Return hashes of all code that shapes programs. The first call reads it; a standby makes that call in advance."""
    return {"source": hash_sources(PACKAGES), "libraries": hash_libraries(tuple(sys.path))}


def spec_key(spec: TrainingJobSpec) -> dict[str, Any]:
    """Return the spec without the parts that shape no program."""
    spec_json: dict[str, Any] = spec.model_dump(mode="json", by_alias=True)
    for path in SPEC_WITHOUT_EFFECT:
        *parents, last = path.split(".")
        section = spec_json
        for parent in parents:
            section = section[parent]
        section.pop(last, None)  # fields that older agents do not know are left out while they are unset
    return spec_json


def jax_key(values: Mapping[str, Any]) -> dict[str, str]:
    """Return JAX's configuration without the values that shape no program."""
    return {name: str(value) for name, value in values.items() if name not in JAX_WITHOUT_EFFECT}


def variables_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that compilers read, except those that JAX has taken into its configuration."""
    ignored = tuple(VARIABLES_WITHOUT_EFFECT)
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(VARIABLE_PREFIXES) and not name.startswith(ignored) and name.lower() not in jax.config.values
    }
    return {**found, XLA_FLAGS: _flags_key(found.get(XLA_FLAGS, ""))}


def _flags_key(flags: str) -> str:
    """Return XLA's flags without those that dump. A value without a leading dash is the name of a file of flags."""
    text = flags.strip()
    if text and not text.startswith("-"):
        try:
            text = Path(text).read_text(errors="replace")
        except OSError:  # XLA reports it
            return text
    try:
        parts = shlex.split(text)
    except ValueError:  # XLA reports it
        parts = text.split()
    return " ".join(part for part in parts if not part.startswith(DUMP_FLAG_PREFIX))


@cache
def hash_sources(packages: tuple[Path, ...]) -> str:
    """Return a hash of all files of packages, in all their folders except `__pycache__`."""
    digest = hashlib.sha256()
    for package in packages:
        for path in sorted(_list_files(package)):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(f"{package.name}\0{path.relative_to(package).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()


def _list_files(package: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(package):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (Path(folder, name) for name in names)


@cache
def hash_libraries(search_path: tuple[str, ...]) -> str:
    """Return a hash of all installed distributions: their names, versions, and file lists with hashes.

    All distributions enter, because the set that shapes programs changes: device plugins, kernels, compilers.
    """
    digest = hashlib.sha256()
    for place in dict.fromkeys(search_path):
        folder = Path(place)
        found = [*folder.glob("*.dist-info"), *folder.glob("*.egg-info")] if place and folder.is_dir() else []
        for path in sorted(found):
            record = path / "RECORD"
            content = record.read_bytes() if record.is_file() else b""
            digest.update(f"{path.name}\0{hashlib.sha256(content).hexdigest()}\0".encode())
    return digest.hexdigest()


def _target_key(accelerator_platform: str) -> list[str]:
    """Return the compilation target: a CPU's instruction sets, or a device with its runtime."""
    if accelerator_platform == "cpu":
        return describe_processor()
    device = jax.devices()[0]
    return [platform.machine(), device.device_kind, device.client.platform_version]
