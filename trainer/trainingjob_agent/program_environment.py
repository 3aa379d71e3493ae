"""What a program of `spec.program` receives for one world: environment variables, and the values of placeholders.

`jax.distributed.initialize()` needs no arguments with these variables. JAX reads the coordinator's address and the
local devices from JAX_* variables (`jax/_src/distributed.py` of 0.12). It reads the number of processes, and the number
of this one, only from a cluster that it detects, and asks Open MPI first (`jax/_src/clusters/ompi_cluster.py`). In a
pod it would otherwise detect Kubernetes, and query the API server. So the variables of Open MPI describe the world.
JAX_NUM_PROCESSES and JAX_PROCESS_ID are for programs that pass the arguments themselves.
"""

from collections.abc import Mapping

from trainingjob_agent.trainer_protocol import EVENTS_FD_VARIABLE, LEAVE_FILE_VARIABLE, StartWorld
from trainingjob_agent.world_environment import environment_changes
from trainingjob_api.spec.program import PLACEHOLDER

PREFIX = "TRAININGJOB_"
OWN_VARIABLES = frozenset({EVENTS_FD_VARIABLE, LEAVE_FILE_VARIABLE})
"""Variables of the agent that the program keeps. The others with the prefix are for agents alone."""
CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
"""Variable with the folder of JAX's own cache of compiled programs."""
MPI_LAUNCHER = "0.0;tcp://127.0.0.1:0"
"""Address of Open MPI's launcher. JAX checks that it is set, and reads it only without a coordinator's address."""


def world_values(start: StartWorld) -> dict[str, str]:
    """Return the values of a process in a world by the names of `trainingjob_api.spec.program.PLACEHOLDERS`."""
    world, layout = start.world, start.config.layout(len(start.world.slices))
    (member,) = (member for member in world.members if member.process == start.process)
    return {
        "coordinator": world.coordinator,
        "devices": str(layout.num_devices),
        "devices_per_process": str(layout.devices_per_host),
        "generation": str(world.generation),
        "process": str(start.process),
        "processes": str(layout.num_hosts),
        "run_folder": start.config.spec.checkpoint.uri,
        "slice": str(world.slices.index(member.slice)),
        "slices": str(layout.num_slices),
    }


def fill_in(argument: str, values: Mapping[str, str]) -> str:
    """Return an argument of `program.command` with its placeholders replaced. Unknown names stay as they are."""
    return PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), argument)


def program_environment(start: StartWorld, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program in a world. The job's own values of tuning variables take precedence."""
    platform, values = start.config.accelerator_platform, world_values(start)
    layout = start.config.layout(len(start.world.slices))
    environment = {
        name: value for name, value in inherited.items() if not name.startswith(PREFIX) or name in OWN_VARIABLES
    }
    for name, changed in environment_changes(platform, layout, environment, start.world, start.process).items():
        if changed is None:
            del environment[name]
        else:
            environment[name] = changed
    cache = {CACHE_VARIABLE: start.compile_cache} if start.compile_cache else {}
    return {
        **cache,
        **environment,
        **_jax_variables(platform, values),
        **{PREFIX + name.upper(): value for name, value in values.items()},
        # One number for each process: the place of its slice in the world. A lost slice leaves no gap.
        f"{PREFIX}SLICE_MAP": ",".join(
            str(start.world.slices.index(member.slice))
            for member in sorted(start.world.members, key=lambda member: member.process)
        ),
    }


def _jax_variables(platform: str, values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which JAX joins the world without arguments."""
    on_cpu = {
        "JAX_NUM_CPU_DEVICES": values["devices_per_process"],
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
    }
    return {
        "JAX_PLATFORMS": platform if platform == "cpu" else f"{platform},cpu",
        "JAX_CHECK_PROXY_ENVS": "false",  # peers are behind no proxy
        "JAX_COORDINATOR_ADDRESS": values["coordinator"],
        "JAX_COORDINATOR_BIND_ADDRESS": values["coordinator"],
        "JAX_NUM_PROCESSES": values["processes"],
        "JAX_PROCESS_ID": values["process"],
        "JAX_LOCAL_DEVICE_IDS": ",".join(map(str, range(int(values["devices_per_process"])))),
        "OMPI_MCA_orte_hnp_uri": MPI_LAUNCHER,
        "OMPI_COMM_WORLD_SIZE": values["processes"],
        "OMPI_COMM_WORLD_RANK": values["process"],
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        **(on_cpu if platform == "cpu" else {}),
    }
