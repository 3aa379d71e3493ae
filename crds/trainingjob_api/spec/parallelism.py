"""The parallelism section: axis sizes of the mesh, the pipeline, and sharding rules."""

from operator import attrgetter
from typing import Annotated, Any, Literal

from pydantic import Field

from trainingjob_api.base import AXES, Axis, Duration, Strict
from trainingjob_api.meta import NO_UNIT, Example, NoStoredDefaults, Unit
from trainingjob_api.pipeline import DEFAULT_REPEATS, PipelineSchedule, ScheduleName
from trainingjob_api.token_order import Exchange

Degree = Annotated[int, Field(ge=-1, le=65536)]
"""The size of a mesh axis; -1 takes the remaining devices. A rule that names the field rejects 0."""


_read_degrees = attrgetter(*AXES)


class AxisDegrees(Strict):
    """Size of each mesh axis. At most one axis is -1 and takes the remaining devices."""

    data: Annotated[Degree, Unit("ways"), Example(1)] = Field(
        default=1, description="Data parallelism: replicas of the parameters."
    )
    stage: Annotated[Degree, Unit("ways"), Example(1)] = Field(
        default=1, description="Pipeline parallelism: each stage holds its share of the layers."
    )
    fsdp: Annotated[Degree, Unit("ways"), Example(1)] = Field(
        default=1, description="Fully sharded data parallelism: shards both the batch and the parameters."
    )
    expert: Annotated[Degree, Unit("ways"), Example(1)] = Field(
        default=1,
        description="Expert parallelism: shards the experts of each layer, and routes tokens to them. It shards the "
        "batch and all other parameters like `fsdp`.",
    )
    context: Annotated[Degree, Unit("ways"), Example(1)] = Field(
        default=1,
        description="Context parallelism: shards sequences, and parameters like `fsdp`. The devices exchange keys "
        "and values, see `parallelism.context`.",
    )
    tensor: Annotated[Degree, Unit("ways"), Example(1)] = Field(
        default=1, description="Tensor parallelism: shards attention heads and MLP columns."
    )

    def items(self) -> tuple[tuple[Axis, int], ...]:
        """Return (axis, size) in mesh order."""
        return tuple(zip(AXES, _read_degrees(self), strict=True))  # a plan of 256 sizes calls this about 5,000 times

    def sharded(self) -> tuple[tuple[Axis, int], ...]:
        """Return (axis, size) of the axes that are sharded or take the remaining devices, in mesh order."""
        return tuple((axis, degree) for axis, degree in self.items() if degree != 1)


class Pipeline(Strict):
    """Schedule of a pipeline."""

    schedule: Annotated[ScheduleName, Example("circular")] = Field(
        default="gpipe",
        description="Order of the work: `gpipe` (arXiv 1811.06965), or `circular`, which divides the bubble by "
        "`repeats` (arXiv 2104.04473). With `oneForwardOneBackward`, memory does not grow with the microbatches, "
        "and each stage runs forward twice (arXiv 2006.09503).",
    )
    repeats: Annotated[Annotated[int, Field(ge=2, le=256)] | None, Unit("groups of layers"), Example(2)] = Field(
        default=None,
        description=f"Number of groups of layers of each stage with `schedule: circular`. Unset: {DEFAULT_REPEATS}.",
    )
    microbatches: Annotated[Annotated[int, Field(ge=1, le=65536)] | None, Unit("microbatches"), Example(8)] = Field(
        default=None,
        description="Number of microbatches, a multiple of the stages; more reduce the bubble, and take more memory "
        "except with `oneForwardOneBackward`. "
        "Unset: at least four times the stages if batch and memory allow it.",
    )

    @property
    def groups(self) -> int:
        """Return the number of groups of layers of each stage."""
        return (self.repeats or DEFAULT_REPEATS) if self.schedule == "circular" else 1

    def alternates(self, stages: int) -> bool:
        """Return whether stages run one forward and one backward pass in turn."""
        return stages > 1 and self.schedule == "oneForwardOneBackward"

    def plan(self, microbatches: int, stages: int) -> PipelineSchedule:
        """Return the schedule of an accumulation step with so many microbatches and stages."""
        if stages == 1:
            return PipelineSchedule(microbatches, stages)
        return PipelineSchedule(microbatches, stages, self.groups, self.alternates(stages))


class Context(Strict):
    """Context parallelism, used if the axis `context` is sharded."""

    exchange: Annotated[Exchange, Example("ring")] = Field(
        default="gather",
        description="Exchange of keys and values: `gather` gives each device those of the whole sequence. With `ring`, "
        "a device holds only its own and those that pass (arXiv 2310.01889).",
    )


RuleAxis = Literal["fsdp", "expert", "context", "tensor"]
"""A mesh axis that may shard parameters. `data` always replicates them, and `stage` always shards the layers."""


def _rule(what: str, built_in: str) -> Any:
    return Field(default=None, max_length=4, description=f"Axes that split {what}, outermost first. Unset: {built_in}.")


class Rules(Strict):
    """Mesh axes that shard the dims of parameters and optimizer state at rest.

    A name is the logical axis of a dim. Activations follow the mesh alone: parameters are gathered for use. An axis
    shards at most one dim of a tensor. An empty list shards nothing.
    """

    embed: Annotated[tuple[RuleAxis, ...] | None, Example(["fsdp", "context"])] = _rule(
        "the residual stream's dim of all parameters but those of experts", "[fsdp, expert, context]"
    )
    vocab: Annotated[tuple[RuleAxis, ...] | None, Example(["tensor", "expert"])] = _rule(
        "the vocabulary's dim of the embedding table and the output projection", "[tensor]"
    )
    heads: Annotated[tuple[RuleAxis, ...] | None, Example(["tensor"])] = _rule("the query heads", "[tensor]")
    kv_heads: Annotated[tuple[RuleAxis, ...] | None, Example(["tensor"])] = _rule("the key and value heads", "[tensor]")
    mlp: Annotated[tuple[RuleAxis, ...] | None, Example(["tensor"])] = _rule(
        "the columns of MLPs and experts", "[tensor]"
    )
    experts: Annotated[tuple[RuleAxis, ...] | None, Example(["expert"])] = _rule(
        "the experts of a layer among devices", "[expert]"
    )
    expert_embed: Annotated[tuple[RuleAxis, ...] | None, Example(["fsdp", "context"])] = _rule(
        "the residual stream's dim of the experts' parameters", "[fsdp, context]"
    )

    def overrides(self) -> dict[str, tuple[Axis, ...]]:
        """Return the rules that the spec overrides, by logical axis."""
        return {name: axes for name, axes in self if axes is not None}


class Replicas(Strict):
    """Training of each slice alone for a round, after which an outer optimizer applies the mean of the changes."""

    sync_every: Annotated[int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(36)] = Field(
        default=36, description="Steps of a round, after which the replicas exchange their changes."
    )
    learning_rate: Annotated[float, Field(gt=0, le=1000), NO_UNIT, Example(0.3)] = Field(
        default=0.3, description="Learning rate of the outer optimizer, which applies the mean of the changes."
    )
    momentum: Annotated[float, Field(ge=0, lt=1), NO_UNIT, Example(0.9)] = Field(
        default=0.9, description="Nesterov momentum of the outer optimizer."
    )
    wait_for: Annotated[Duration, Example("1m")] = Field(
        default="60s",
        description="Maximum time to wait at the end of a round for the changes of other slices that train.",
    )


class Parallelism(Strict):
    """The mesh: ICI axis sizes inside a slice, DCN axis sizes across slices. Their product is the mesh shape."""

    strategy: Annotated[Literal["explicit", "auto"], Example("explicit")] = Field(
        default="explicit",
        description="Source of the degrees: `explicit` uses the given ones. `auto` lets the planner choose the "
        "fastest mesh and `memory.remat` by its roofline, with `optimizer` in `memory.offload` if nothing else fits.",
    )
    ici: Annotated[AxisDegrees, Example({"fsdp": -1})] = Field(
        default=AxisDegrees(fsdp=-1),
        description="Degrees inside a slice. Their product is the number of devices of a slice.",
    )
    dcn: Annotated[AxisDegrees, Example({"data": -1})] = Field(
        default=AxisDegrees(data=-1),
        description="Degrees across slices. Their product is the number of slices.",
    )
    pipeline: Pipeline = Field(
        default=Pipeline(), description="Pipeline schedule, used if the axis `stage` is sharded."
    )
    context: Context = Field(
        default=Context(), description="Exchange of keys and values, used if the axis `context` is sharded."
    )
    rules: Rules = Field(
        default=Rules(),
        description="Overrides of the built-in sharding rules for parameters.",
    )
    shard_stream_over_tensor: Annotated[bool, Example(True)] = Field(
        default=False,
        description="Shards the residual stream and its norms over `tensor`, along the sequence (sequence parallelism; "
        "arXiv 2205.05198). It saves memory of activations and sends as much.",
    )
    shard_optimizer_over_data: Annotated[bool, Example(True)] = Field(
        default=False,
        description="Shards the optimizer state over `data` too (ZeRO-1; Rajbhandari et al., arXiv 1910.02054). It "
        "saves memory and adds one gather of the parameters in each step.",
    )
    replicas: Annotated[Replicas | None, NoStoredDefaults()] = Field(
        default=None,
        description="Slices as replicas that exchange changes once in a round (DiLoCo, arXiv 2311.08105). Unset: one "
        "world spans all slices and sums gradients in each step.",
        exclude_if=lambda replicas: replicas is None,  # an agent before 0.1 refuses a field that it does not know
    )
