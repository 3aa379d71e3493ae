"""The environment variables of a process in a world: all that libtpu, JAX, XLA and NCCL read there of who meets whom.

They follow from the world alone. What was inherited, from the image, the pod or a provider's webhook, speaks of the
world that the pod was made for: with it, a slice that is left alone waits for slices that are gone. So each variable
of `trainingjob_api.variables.OF_A_WORLD` is set here or taken away. How the chips of a slice lie (TPU_TOPOLOGY,
TPU_ACCELERATOR_TYPE and the bounds) only its nodes know, so what the TPU device plugin says of that stays. What tunes
and makes no world stays too, and wins over what is chosen here; of megascale, what tunes goes in LIBTPU_INIT_ARGS.

No TPU and no GPU has run this. It stands on what the providers write, and on names found in what they ship:

- MEGASCALE_COORDINATOR_ADDRESS, _NUM_SLICES, _SLICE_ID, _PORT: libtpu 0.0.52 names each, and says itself of the port
  that it must be set; every host listens there. Process 0's host leads (JAX, `cloud_tpu_cluster.py`). Ray's
  `get_tpu_coordinator_env_vars` and KubeRay's webhook set all four, and Levanter's `megascale.py` writes the port into
  the address too. Unset they mean one slice (`cloud_tpu_cluster.py`, `_get_num_slices`). SKIP_MEGASCALE_PJRT_CLIENT
  leaves slices apart (torch_xla sets it to compile).
- TPU_WORKER_ID, TPU_WORKER_HOSTNAMES: a number for each pod of a slice from zero on, and in that order the host names
  or IP addresses of the slice (GKE, on the variables of TPU workloads). TPU_PROCESS_ADDRESSES and its _PATH come before
  them (`cloud_tpu_cluster.py`, `_get_worker_host_names_env_var`), and are for several processes a host. So are, by
  their names in libtpu, CLOUD_TPU_TASK_ID, TPU_PROCESS_PORT and the lists of a slice builder's workers.
- The number of a process: slice by slice, host by host (`cloud_tpu_cluster.py`, `get_process_id`), as worlds count. The
  TPU runtime's own, `jax.process_index`, follows from where the chips lie instead, whatever is said here (`Peers`).
- JAX_COORDINATOR_* and JAX_PROCESS_ID say what is passed to JAX as arguments. JAX_LOCAL_DEVICE_IDS, JAX_PARTITION_INDEX
  and JAX_SLICE_INDEX it takes nevertheless (`jax/_src/distributed.py` of 0.12). JAX_ENABLE_RECOVERABILITY is read when
  JAX is imported: so a child is started without all of these.
- ABORTABLE and ABORT: JAX's "Fault Tolerant Distributed JAX", under "Cancelling Collectives". A collective whose peer
  is gone ends with an error, which is reported, instead of never, and instead of ending the process without a word. The
  flags stand in the CUDA plugin of JAX 0.12, and in the jaxlib that is tested here: XLA ends a process that is given
  one it does not know. The recipe's XLA_PYTHON_CLIENT_USE_TFRT_GPU_CLIENT is left out, because XLA's other GPU client
  aborts too (`se_gpu_pjrt_client.cc`).
- NCCL_COMM_ID would pin the address at which NCCL's processes meet (NCCL, `bootstrap.cc`).
- no_grpc_proxy: gRPC reads it before no_proxy (gRPC, `doc/environment_variables.md`). Peers are behind no proxy.
"""

from collections.abc import Mapping, MutableMapping

from trainingjob_api.variables import OF_A_WORLD
from trainingjob_api.world import Layout, Member, World, join_address

type Changes = dict[str, str | None]
"""What variables become; None: they must not be there."""

CPU_COLLECTIVE_SECONDS = 600
"""Hosts that share few cores may be late to a collective; a hang is for the operator to judge."""
PATIENT = tuple(
    f"--xla_cpu_collective_{name}={CPU_COLLECTIVE_SECONDS}"
    for name in ("timeout_seconds", "call_warn_stuck_timeout_seconds", "call_terminate_timeout_seconds")
)
ABORTABLE = (
    "--xla_gpu_nccl_terminate_on_error=false",
    "--xla_gpu_nccl_async_execution=true",
    "--xla_gpu_nccl_blocking_communicators=false",
)
ABORT = "XLA_PYTHON_CLIENT_ABORT_COLLECTIVES_ON_FAILURE"
GPU_MEMORY_SHARE = "0.94"
"""Of a GPU's memory that XLA takes at its start. Its own choice is three quarters, and plans count on 0.92."""
GPU_MEMORY_VARIABLES = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
"""By which a job may choose another share. The older name excludes the newer one."""
FIRST_PORT, NUM_PORTS = 20_000, 1_000
"""Where libtpu's slices meet: one port a generation, so that a process of the one before finds nobody to speak with.

They lie below those that kernels give away, as to JAX's coordinator, and above libtpu's own.
"""


def forget_worlds(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return an environment that speaks of no world, for a process that will be told of one."""
    return {name: value for name, value in inherited.items() if not name.startswith(OF_A_WORLD)}


def derive(
    platform: str, layout: Layout, inherited: Mapping[str, str], world: World | None = None, process: int = 0
) -> Changes:
    """Return how the environment must change for a process of a world. Without a world: for one that only compiles."""
    needed = {
        **(_meet(world, process, platform) if world else {}),
        **_tune(platform, layout, inherited),
    }
    stale = {name: None for name in inherited if name.startswith(OF_A_WORLD) and name not in needed}
    return {**stale, **{name: value for name, value in needed.items() if inherited.get(name) != value}}


def change(environment: MutableMapping[str, str], changes: Changes) -> None:
    """Make an environment what it must be."""
    for name, value in changes.items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = value


def _meet(world: World, process: int, platform: str) -> dict[str, str]:
    """Return by what a process finds the others of its world, and is found."""
    peers = ",".join(dict.fromkeys(member.address for member in _in_order(world)))
    return {
        **({"no_grpc_proxy": peers} if len(world.members) > 1 else {}),
        **(_meet_in_slice(world, process) if platform == "tpu" else {}),
        **(_meet_across_slices(world, process) if platform == "tpu" and len(world.slices) > 1 else {}),
    }


def _meet_in_slice(world: World, process: int) -> dict[str, str]:
    hosts = [member for member in _in_order(world) if member.slice == _find(world, process).slice]
    return {
        "TPU_WORKER_ID": str([member.process for member in hosts].index(process)),
        "TPU_WORKER_HOSTNAMES": ",".join(member.address for member in hosts) if len(hosts) > 1 else "localhost",
    }


def _meet_across_slices(world: World, process: int) -> dict[str, str]:
    """Return the variables by which slices connect over DCN. A lost slice leaves no gap in their numbers."""
    port = FIRST_PORT + world.generation % NUM_PORTS
    return {
        "MEGASCALE_COORDINATOR_ADDRESS": join_address(_in_order(world)[0].address, port),
        "MEGASCALE_NUM_SLICES": str(len(world.slices)),
        "MEGASCALE_PORT": str(port),
        "MEGASCALE_SLICE_ID": str(world.slices.index(_find(world, process).slice)),
    }


def _tune(platform: str, layout: Layout, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return what a platform is better run with. A job may choose otherwise."""
    flags = inherited.get("XLA_FLAGS", "")
    if platform == "cpu":
        return {"XLA_FLAGS": _join_flags(PATIENT, flags)}
    if platform != "cuda":
        return {}
    has_share = any(name in inherited for name in GPU_MEMORY_VARIABLES)
    memory = {} if has_share else {GPU_MEMORY_VARIABLES[0]: GPU_MEMORY_SHARE}
    if layout.num_hosts == 1:
        return memory
    return {**memory, "XLA_FLAGS": _join_flags(ABORTABLE, flags), ABORT: inherited.get(ABORT, "1")}


def _join_flags(ours: tuple[str, ...], theirs: str) -> str:
    """Return flags of which the job's win, since the last one holds. A process of this one's has ours already."""
    joined = " ".join(ours)
    return theirs if joined in theirs else f"{joined} {theirs}".strip()


def _in_order(world: World) -> list[Member]:
    return sorted(world.members, key=lambda member: member.process)


def _find(world: World, process: int) -> Member:
    return next(member for member in world.members if member.process == process)
