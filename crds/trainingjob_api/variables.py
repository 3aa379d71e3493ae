"""Environment variables that say what a world or a slice is, by the beginnings of their names.

A world's are set anew for each process of each world or taken away, for what was inherited speaks of a world that is
gone. A slice's come from its nodes, which alone know them. Neither are a job's to choose.
"""

OF_A_WORLD = (
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
"""Who its processes are, where they meet, and which of them one is."""
OF_A_SLICE = (
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
"""Which TPU it is, how its chips lie, and which of them are this host's."""
FLAGS_OF_A_WORLD = (
    "megascale_coordinator_address",
    "megascale_num_slices",
    "megascale_port",
    "megascale_slice_id",
)
"""What libtpu takes as a flag too, in LIBTPU_INIT_ARGS."""
