"""The memory section: rematerialization, host offload, and chunks of the logits."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Strict
from trainingjob_api.meta import CelRule, Example, Unit, cel_rule
from trainingjob_api.network.activations import POLICIES, OffloadedName, SavedActivations, SavedName

Remat = Literal["none", "minimal", "saveMatmuls", "saveAttention", "full", "custom"]
NO_REMAT: Remat = "none"
CUSTOM: Remat = "custom"


class Memory(Strict):
    """Activation memory: rematerialization, host offload, and chunks of the logits."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        cel_rule(
            "self.remat == 'custom' || !has(self.save)",
            "must not be set with another policy. Remove it, or set `remat: custom`.",
            "save",
        ),
        cel_rule(
            "self.remat == 'custom' || !has(self.offload)",
            "must not be set with another policy. Remove it, or set `remat: custom`.",
            "offload",
        ),
        cel_rule(
            "self.remat != 'custom' || has(self.save) || has(self.offload)",
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
    offload: Annotated[tuple[OffloadedName, ...] | None, Example(["layerInput"])] = Field(
        default=None,
        max_length=16,
        description="Activations that `remat: custom` saves in host memory. The transfers overlap with matmuls.",
        json_schema_extra=LIST_TYPE_SET,
    )
    loss_chunks: Annotated[Annotated[int, Field(ge=1, le=65536)] | None, Unit("chunks"), Example(4)] = Field(
        default=None,
        description="Number of chunks in which a device computes the logits and losses of a microbatch, one after the "
        "other. Unset: the fewest whose float32 logits take at most 1 GiB.",
    )

    @property
    def saved(self) -> SavedActivations | None:  # None: no rematerialization
        """Return the activations that the policy saves."""
        if self.remat == NO_REMAT:
            return None
        if self.remat == CUSTOM:
            return SavedActivations(frozenset(self.save or ()), frozenset(self.offload or ()))
        return SavedActivations(frozenset(POLICIES[self.remat]))
