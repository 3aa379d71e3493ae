"""Environment variables of a process in a world: what libtpu, JAX, XLA and NCCL read there about its peers.

They follow from the world alone. Values inherited from the image, the pod or a provider's webhook describe the world
that the pod was created for: with them, a remaining slice waits for lost slices. Each variable of
`trainingjob_api.variables.WORLD_VARIABLES` is therefore set here or removed. Only the nodes know how the chips of a
slice lie (TPU_TOPOLOGY, TPU_ACCELERATOR_TYPE and the bounds). The values of the TPU device plugin therefore stay.
Tuning variables stay too, and override the defaults of this module; megascale is tuned in LIBTPU_INIT_ARGS.

No TPU and no GPU has run this code. It is based on what the providers document, and on names found in their software:

- MEGASCALE_COORDINATOR_ADDRESS, _NUM_SLICES, _SLICE_ID, _PORT: libtpu 0.0.52 contains each name, and states that the
  port must be set; every host listens there. The host of process 0 leads (JAX, `cloud_tpu_cluster.py`). Ray's
  `get_tpu_coordinator_env_vars` and KubeRay's webhook set all four, and Levanter's `megascale.py` writes the port into
  the address too. Unset, they mean one slice (`cloud_tpu_cluster.py`, `_get_num_slices`). SKIP_MEGASCALE_PJRT_CLIENT
  leaves slices apart (torch_xla sets it to compile).
- TPU_WORKER_ID, TPU_WORKER_HOSTNAMES: a number for each pod of a slice from zero on, and the host names or IP addresses
  of the slice in that order (GKE, on the variables of TPU workloads). TPU_PROCESS_ADDRESSES and its _PATH override them
  (`cloud_tpu_cluster.py`, `_get_worker_host_names_env_var`), and are for several processes a host. By their names in
  libtpu, so are CLOUD_TPU_TASK_ID, TPU_PROCESS_PORT and the lists of a slice builder's workers.
- The number of a process: slice by slice, host by host (`cloud_tpu_cluster.py`, `get_process_id`), as worlds count. The
  TPU runtime's own number, `jax.process_index`, follows from the position of the chips instead (see `ProcessGroup`).
- JAX_COORDINATOR_* and JAX_PROCESS_ID repeat what is passed to JAX as arguments. JAX reads JAX_LOCAL_DEVICE_IDS,
  JAX_PARTITION_INDEX and JAX_SLICE_INDEX nevertheless (`jax/_src/distributed.py` of 0.12), and
  JAX_ENABLE_RECOVERABILITY when it is imported. A child is therefore started without all of these.
- ABORTABLE and ABORT: JAX's "Fault Tolerant Distributed JAX", under "Cancelling Collectives". A collective with a lost
  peer then ends with an error, which is reported. Otherwise it never ends, or ends the process without a message. The
  flags exist in the CUDA plugin of JAX 0.12 and in the jaxlib that is tested here: XLA ends a process that has an
  unknown flag. The recipe's XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT is left out, because XLA's other GPU client aborts
  too (`se_gpu_pjrt_client.cc`).
- The latency-hiding scheduler is off in XLA for GPUs below the optimization level O1, and JAX sets no level (OpenXLA,
  "Effort Levels"). The JAX images of NVIDIA switch it on. TPUs have one that is always on.
- NCCL_COMM_ID would pin the address of NCCL's rendezvous (NCCL, `bootstrap.cc`).
- no_grpc_proxy: gRPC reads it before no_proxy (gRPC, `doc/environment_variables.md`). Peers are behind no proxy.
"""

from collections.abc import Mapping, MutableMapping
from pathlib import Path

from trainingjob_api.variables import WORLD_VARIABLES
from trainingjob_api.world import Layout, Member, World, join_address

type EnvironmentChanges = dict[str, str | None]
"""New values of variables; None: the variable must not be set."""

CPU_COLLECTIVE_SECONDS = 600
"""Hosts that share few cores may be late to a collective; the operator decides what counts as a hang."""
CPU_COLLECTIVE_FLAGS = tuple(
    f"--xla_cpu_collective_{name}={CPU_COLLECTIVE_SECONDS}"
    for name in ("timeout_seconds", "call_warn_stuck_timeout_seconds", "call_terminate_timeout_seconds")
)
NCCL_ABORT_FLAGS = (
    "--xla_gpu_nccl_terminate_on_error=false",
    "--xla_gpu_nccl_async_execution=true",
    "--xla_gpu_nccl_blocking_communicators=false",
)
OVERLAP_FLAGS = ("--xla_gpu_enable_latency_hiding_scheduler=true",)
"""XLA for GPUs otherwise orders a program without regard to collectives, so that matmuls wait for them. Plans count on
gathers that overlap with matmuls."""
ABORT_VARIABLE = "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE"
GPU_MEMORY_SHARE = "0.94"
"""Share of a GPU's memory that XLA allocates at its start. XLA's default is three quarters, and plans count on 0.92."""
GPU_MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""Variables with which a job may choose another share. The older name excludes the newer one."""
FIRST_PORT, NUM_PORTS = 20_000, 1_000
"""Ports of libtpu's rendezvous between slices: one per generation, so that it never meets the previous one.

They lie below the kernel's ephemeral ports, which JAX's coordinator uses, and above libtpu's own ports.
"""


def without_world_variables(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables of a world, for a process that will get one."""
    return {name: value for name, value in inherited.items() if not name.startswith(WORLD_VARIABLES)}


def environment_changes(
    platform: str, layout: Layout, inherited: Mapping[str, str], world: World | None = None, process: int = 0
) -> EnvironmentChanges:
    """Return how the environment must change for a process of a world, or, without a world, for compilation only."""
    needed = {
        **(_rendezvous_variables(world, process, platform) if world else {}),
        **_tuning_variables(platform, layout, inherited),
    }
    stale = {name: None for name in inherited if name.startswith(WORLD_VARIABLES) and name not in needed}
    return {**stale, **{name: value for name, value in needed.items() if inherited.get(name) != value}}


def apply_changes(environment: MutableMapping[str, str], changes: EnvironmentChanges) -> None:
    """Apply changes to an environment."""
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def _rendezvous_variables(world: World, process: int, platform: str) -> dict[str, str]:
    """Return the variables by which a process and its peers find each other."""
    peers = ",".join(dict.fromkeys(member.address for member in _members_by_process(world)))
    return {
        **({"no_grpc_proxy": peers} if len(world.members) > 1 else {}),
        **(_slice_variables(world, process) if platform == "tpu" else {}),
        **(_megascale_variables(world, process) if platform == "tpu" and len(world.slices) > 1 else {}),
    }


def _slice_variables(world: World, process: int) -> dict[str, str]:
    hosts = [member for member in _members_by_process(world) if member.slice == _find_member(world, process).slice]
    return {
        "TPU_WORKER_ID": str([member.process for member in hosts].index(process)),
        "TPU_WORKER_HOSTNAMES": ",".join(member.address for member in hosts) if len(hosts) > 1 else "localhost",
    }


def _megascale_variables(world: World, process: int) -> dict[str, str]:
    """Return the variables by which slices connect over DCN. A lost slice leaves no gap in their numbers."""
    port = FIRST_PORT + world.generation % NUM_PORTS
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": join_address(_members_by_process(world)[0].address, port),
        "MEGASCALE_NUM_SLICES": str(len(world.slices)),
        "MEGASCALE_PORT": str(port),
        "MEGASCALE_SLICE_ID": str(world.slices.index(_find_member(world, process).slice)),
    }


def _tuning_variables(platform: str, layout: Layout, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the tuning defaults of a platform, which a job may override."""
    flags = inherited.get("XLA_FLAGS", "")
    if platform == "cpu":
        return {"XLA_FLAGS": _join_flags(CPU_COLLECTIVE_FLAGS, flags)}
    if platform != "cuda":
        return {}
    has_share = any(name in inherited for name in GPU_MEMORY_VARIABLES)
    memory = {} if has_share else {GPU_MEMORY_VARIABLES[0]: GPU_MEMORY_SHARE}
    if layout.num_devices == 1:
        return memory
    if layout.num_hosts == 1:
        return {**memory, "XLA_FLAGS": _join_flags(OVERLAP_FLAGS, flags)}
    return {
        **memory,
        "XLA_FLAGS": _join_flags((*OVERLAP_FLAGS, *NCCL_ABORT_FLAGS), flags),
        ABORT_VARIABLE: inherited.get(ABORT_VARIABLE, "1"),
    }


def _join_flags(defaults: tuple[str, ...], job_flags: str) -> str:
    """Return flags in which those of the job override the defaults, as the last one counts. They may hold these."""
    joined, found = " ".join(defaults), _read_flags(job_flags)
    # XLA names a file that it cannot read in its error, but only if the variable holds nothing else.
    return job_flags if found is None or joined in found else f"{joined} {found}".strip()


def _read_flags(value: str) -> str | None:  # None: a file that cannot be read
    """Return the flags of a variable. One that begins with no dash names a file of flags, which XLA reads alone."""
    text = value.strip()
    if not text or text.startswith("-"):
        return value
    try:
        return Path(text).read_text(errors="replace").strip()
    except OSError:
        return None


def _members_by_process(world: World) -> list[Member]:
    return sorted(world.members, key=lambda member: member.process)


def _find_member(world: World, process: int) -> Member:
    return next(member for member in world.members if member.process == process)
