"""Named activations of a layer: what rematerialization may save for the backward pass instead of recomputing it.

The names are those of the products of matrices, of the input of a layer and of what attention reads. A part states the
bytes and the FLOPs of each of its activations. The trainer gives arrays these names.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SavedName = Literal[
    "query",
    "key",
    "value",
    "latent",
    "attentionOutput",
    "attentionProjection",
    "mlpGate",
    "mlpUp",
    "mlpOutput",
]
OffloadedName = Literal["layerInput", SavedName]

MLP_OUTPUT: SavedName = "mlpOutput"
LAYER_INPUT: OffloadedName = "layerInput"
"""The residual stream before a layer. Rematerialization always saves it."""
ATTENTION_OUTPUT: SavedName = "attentionOutput"
"""What the heads read, before the output projection."""
PRODUCTS: Mapping[str, SavedName] = {
    "query": "query",
    "query_up": "query",
    "key": "key",
    "value": "value",
    "query_down": "latent",
    "key_value_down": "latent",
    "rope_key": "latent",
    "out": "attentionProjection",
    "gate": "mlpGate",
    "up": "mlpUp",
    "down": "mlpOutput",
}
"""The name of a matrix's product, by the name of the matrix in its part."""

_MATMULS: tuple[SavedName, ...] = (
    "query",
    "key",
    "value",
    "latent",
    "attentionProjection",
    "mlpGate",
    "mlpUp",
    "mlpOutput",
)
POLICIES: Mapping[str, tuple[SavedName, ...]] = {
    "minimal": (*_MATMULS, "attentionOutput"),
    "saveMatmuls": _MATMULS,
    "saveAttention": ("query", "key", "value", "latent", "attentionOutput"),
    "full": (),
}
"""What each named policy saves beside the input of a layer, from the fewest FLOPs to the least memory."""


@dataclass(frozen=True)
class Activation:
    """One named activation of a part on one device, per token."""

    name: SavedName
    num_bytes: int
    flops: int
    """FLOPs of its computation, which a saved activation spares the backward pass."""


@dataclass(frozen=True)
class SavedActivations:
    """The activations that rematerialization saves. Beside them it saves the input of a layer."""

    on_device: frozenset[str]
    on_host: frozenset[str] = frozenset()
    """Those that are offloaded to the memory of the host."""

    @property
    def names(self) -> frozenset[str]:
        """Return all saved activations."""
        return self.on_device | self.on_host
