"""The memory section: rematerialization, host offload, and chunks of the logits."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Strict
from trainingjob_api.meta import CelRule, Example, Unit, cel_rule
from trainingjob_api.network.activations import POLICIES, OffloadedName, SavedActivations, SavedName

Remat = Literal["none", "minimal", "saveMatmuls", "saveAttention", "full", "custom"]
NO_REMAT: Remat = "none"
CUSTOM: Remat = "custom"
OPTIMIZER: Literal["optimizer"] = "optimizer"
"""The item of `offload` that is no activation: the state of the optimizer."""
OffloadedItem = Literal["optimizer", OffloadedName]


class Memory(Strict):
    """Memory of a train step: rematerialization, host offload, and chunks of the logits."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        cel_rule(
            "self.remat == 'custom' || !has(self.save)",
            "must not be set with another policy. Remove it, or set `remat: custom`.",
            "save",
        ),
        cel_rule(
            "self.remat == 'custom' || !has(self.offload) || self.offload == ['optimizer']",
            "must name no activation with another policy. Keep `optimizer` alone, or set `remat: custom`.",
            "offload",
        ),
        cel_rule(
            "self.remat != 'custom' || has(self.save) || (has(self.offload) && self.offload != ['optimizer'])",
            "custom must have `save` or `offload`. To save nothing but the input of each layer, set `remat: full`.",
            "remat",
        ),
    )

    remat: Annotated[Remat, Example("none")] = Field(
        default="none",
        description="Rematerialization policy, from most memory to most FLOPs: `none`, `minimal`, `saveMatmuls`, "
        "`saveAttention`, `full`; `custom` saves what `save` and `offload` list. The backward pass computes again what "
        "a policy does not save.",
    )
    save: Annotated[tuple[SavedName, ...] | None, Example(["query", "key", "value"])] = Field(
        default=None,
        max_length=16,
        description="Activations that `remat: custom` saves in device memory, beside the input of each layer.",
        json_schema_extra=LIST_TYPE_SET,
    )
    offload: Annotated[tuple[OffloadedItem, ...] | None, Example(["optimizer"])] = Field(
        default=None,
        max_length=16,
        description="Arrays in host memory: activations that `remat: custom` saves, and `optimizer`, whose state comes "
        "to the device for each update. Transfers of activations overlap with matmuls.",
        json_schema_extra=LIST_TYPE_SET,
    )
    loss_chunks: Annotated[Annotated[int, Field(ge=1, le=65536)] | None, Unit("chunks"), Example(4)] = Field(
        default=None,
        description="Number of chunks in which a device computes the logits and losses of a microbatch, one after the "
        "other. Unset: the fewest whose float32 logits take at most 1 GiB.",
    )

    @property
    def offloaded_activations(self) -> tuple[OffloadedName, ...]:
        """Return the activations among the items of `offload`."""
        return tuple(item for item in self.offload or () if item != OPTIMIZER)

    @property
    def offloads_optimizer(self) -> bool:
        """Return whether the spec wants the state of the optimizer in host memory."""
        return OPTIMIZER in (self.offload or ())

    @property
    def saved(self) -> SavedActivations | None:  # None: no rematerialization
        """Return the activations that the policy saves."""
        if self.remat == NO_REMAT:
            return None
        if self.remat == CUSTOM:
            return SavedActivations(frozenset(self.save or ()), frozenset(self.offloaded_activations))
        return SavedActivations(frozenset(POLICIES[self.remat]))
