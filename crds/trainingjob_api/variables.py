"""Environment variables that describe a world or a slice, by name prefix. A job must not set them.

The variables of a world are set or removed for each process of each world, because inherited values describe an earlier
world. The variables of a slice come from its nodes, which alone know them.
"""

WORLD_VARIABLES = (
    "CLOUD_TPU_SLICE_BUILDER_WORKER_IPS",
    "CLOUD_TPU_TASK_ID",
    "JAX_COORDINATOR_",
    "JAX_ENABLE_RECOVERABILITY",
    "JAX_LOCAL_DEVICE_IDS",
    "JAX_NUM_PROCESSES",
    "JAX_PARTITION_INDEX",
    "JAX_PLATFORM",
    "JAX_PROCESS_ID",
    "JAX_SLICE_INDEX",
    "MEGASCALE_",
    "NCCL_COMM_ID",
    "SKIP_MEGASCALE_",
    "SLICER_BUILDER_WORKER_IPS",
    "TPU_HOSTNAME_OVERRIDE",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
)
"""The processes of a world, their addresses, and the process's own id."""
SLICE_VARIABLES = (
    "CHIPS_PER_HOST_BOUNDS",
    "CLOUD_TPU_ACCELERATOR_TYPE",
    "HOST_BOUNDS",
    "TPU_ACCELERATOR_TYPE",
    "TPU_CHIPS_PER_",
    "TPU_HOST_BOUNDS",
    "TPU_PROCESS_BOUNDS",
    "TPU_TOPOLOGY",
    "TPU_VISIBLE_",
)
"""The TPU type, the arrangement of its chips, and the chips of this host."""
WORLD_FLAGS = (
    "megascale_coordinator_address",
    "megascale_num_slices",
    "megascale_port",
    "megascale_slice_id",
)
"""Settings of a world that libtpu also accepts as flags, in LIBTPU_INIT_ARGS."""
