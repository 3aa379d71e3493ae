"""The plan in the status: its parameters, and each number of slices."""

from pydantic import Field

from trainingjob_api.base import Open, Text


class SizeStatus(Open):
    """The plan at one number of slices."""

    slices: int = Field(description="Number of slices of this plan.")
    devices: int = Field(description="Number of JAX devices of these slices.")
    valid: bool = Field(description="Whether the job can train at this size.")
    why: Text = Field(default="", description="Reason why the job cannot train at this size. Empty: it can.")
    mesh: Text = Field(default="", description="Mesh: DCN and ICI degrees.")
    rows_per_shard: int = Field(default=0, description="Sequences of a microbatch on each batch shard.")
    microbatches: int = Field(
        default=0, description="Microbatches of a gradient-accumulation step: several only in a pipeline."
    )
    accumulation: int = Field(default=0, description="Gradient-accumulation steps of one optimizer step.")
    padding_rows: int = Field(default=0, description="Sequences of weight zero in each step.")
    memory_bytes: int = Field(default=0, description="Estimated memory of a device in bytes.")


class KernelStatus(Open):
    """The kernel of a part of the layers."""

    part: Text = Field(description="Part of the layers, such as `attention`.")
    name: Text = Field(description="Name of the implementation, such as `chunked`.")
    reason: Text = Field(description="Why this implementation was chosen.")


class OptimizerMemoryStatus(Open):
    """The memory in which the optimizer's state stays between steps."""

    name: Text = Field(description="Name of the memory: `host` or `device`.")
    reason: Text = Field(description="Why this memory was chosen.")


class PlanStatus(Open):
    """The plan of the spec."""

    parameters: int = Field(description="Number of parameters of the model, frozen ones included.")
    trainable_parameters: int = Field(
        default=0, description="Number of parameters that training changes: all, unless some are frozen."
    )
    preset: Text = Field(default="", description="Preset of the model. Empty: the spec has none.")
    network: Text = Field(
        default="",
        description="Fingerprint of the network: all its dimensions and options, with the values of the preset.",
    )
    active_parameters: int = Field(
        default=0, description="Number of parameters that process one token: all, unless the model has experts."
    )
    tokens_per_step: int = Field(description="Tokens of one optimizer step, without padding.")
    sizes: tuple[SizeStatus, ...] = Field(
        default=(), max_length=256, description="Plan at each number of slices, in ascending order."
    )
    kernels: tuple[KernelStatus, ...] = Field(
        default=(), max_length=16, description="Kernels of the layers, which follow from accelerator, model and length."
    )
    optimizer_memory: OptimizerMemoryStatus | None = Field(
        default=None, description="Memory of the optimizer's state. Unset: `memory.offload` does not list `optimizer`."
    )
