"""One layer of a network: attention, then an MLP or experts, and what it costs on a device."""

from collections.abc import Hashable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property

from trainingjob_api.network.activations import LAYER_INPUT, MLP_OUTPUT, Activation, SavedActivations
from trainingjob_api.network.adapter import Adaptation
from trainingjob_api.network.attention import GroupedQueryAttention
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.layer_costs import LayerCosts
from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.part import Part, PassFlops, Shard
from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.network.tensor import Gradients, Tensor, mark_frozen
from trainingjob_api.sharding import ShardCounts
from trainingjob_api.token_order import Exchange


@dataclass(frozen=True)
class Block:
    """One layer: attention, then an MLP or experts, each with norms and a residual connection.

    The fields are the names of the parts in the model.
    """

    attention: GroupedQueryAttention | LatentAttention
    mlp: DenseMlp | RoutedMlp
    attention_norm: HiddenNorm | None = None
    mlp_norm: HiddenNorm | None = None
    attention_output_norm: HiddenNorm | None = None
    """Norm of what attention adds to the residual stream."""
    mlp_output_norm: HiddenNorm | None = None
    """Norm of what the MLP adds to the residual stream."""
    dropout: float = 0.0
    """Share of the features added to the residual stream that training sets to 0."""
    adaptation: Adaptation | None = None
    """What LoRA changes. None: nothing."""
    frozen: frozenset[str] = frozenset()
    """Names of the tensors that training does not change."""
    is_forward_only: bool = False
    """Whether no gradient passes the layer: all tensors in it and before it are frozen."""
    shards_stream: bool = False
    """Whether `tensor` shards the residual stream along the sequence (Korthikanti et al., arXiv 2205.05198)."""
    quantized: QuantizedMatmuls | None = None
    """Matrices whose matmuls are quantized. None: there are none."""

    def on(self, accelerator: str, exchange: Exchange, *, shards_stream: bool) -> "Block":
        """Return the layer with the kernels of an accelerator, and an exchange along `context`."""
        attention = replace(self.attention, accelerator=accelerator, exchange=exchange)
        return replace(self, attention=attention, shards_stream=shards_stream)

    @cached_property
    def parts(self) -> Mapping[str, Part]:
        """Return the parts in the order of their computation."""
        parts: dict[str, Part | None] = {
            "attention_norm": self.attention_norm,
            "attention": self.attention,
            "attention_output_norm": self.attention_output_norm,
            "mlp_norm": self.mlp_norm,
            "mlp": self.mlp,
            "mlp_output_norm": self.mlp_output_norm,
        }
        return {name: part for name, part in parts.items() if part}

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of one layer."""
        nested = [tensor.nest(f"{name}.") for name, part in self.parts.items() for tensor in part.tensors]
        if self.adaptation:
            nested = list(self.adaptation.apply(nested))
        gradients = Gradients.NONE if self.is_forward_only else Gradients.INPUT
        return tuple(mark_frozen(nested, self.frozen, gradients))

    @cached_property
    def tensors_by_name(self) -> Mapping[str, Tensor]:
        """Return the tensors of one layer by name."""
        return {tensor.name: tensor for tensor in self.tensors}

    def part_of(self, tensor: Tensor) -> Part:
        """Return the part of a tensor of the layer."""
        return self.parts[tensor.name.partition(".")[0]]

    def gathered_size(self, ways: ShardCounts) -> int:
        """Return the parameters of one layer per device while they are gathered for compute."""
        return sum([tensor.gathered_size(ways) for tensor in self.tensors])

    def gathered_gradients(self, ways: ShardCounts) -> int:
        """Return the gradients of one layer's parameters per device, before they are reduced."""
        return sum([tensor.gathered_size(ways) for tensor in self.tensors if tensor.is_trainable])

    def activations(self, shard: Shard, saved: AbstractSet[str] = frozenset()) -> tuple[Activation, ...]:
        """Return the named activations that the backward pass of one layer needs if it has the saved ones."""
        return self._on(shard).activations(saved)

    def flops(self, shard: Shard, saved: SavedActivations | None = None) -> PassFlops:
        """Return the FLOPs of one device per token in one layer; None: nothing is recomputed."""
        costs, recomputed = self._on(shard), 0
        flops = costs.flops
        adapted = self._adaptation_flops(shard, saved)
        if saved is not None and not self.is_forward_only:
            named = costs.activations(saved.names)
            recomputed = flops.recomputed + adapted.recomputed - costs.unneeded_flops(saved.names)
            if isinstance(self.mlp, DenseMlp):  # needed by the norm of the output, if there is one
                recomputed += sum([activation.flops for activation in named if activation.name == MLP_OUTPUT])
            recomputed -= sum([activation.flops for activation in named if activation.name in saved.names])
        return PassFlops(flops.forward + adapted.forward, flops.backward + adapted.backward, recomputed)

    def saved_bytes(self, shard: Shard, saved: SavedActivations | None) -> int:
        """Return the bytes per token that one layer saves in device memory; None: without rematerialization."""
        if self.is_forward_only:
            return 0
        if saved is None:
            return self._on(shard).saved_bytes
        return self._named_bytes(shard, saved, saved.on_device | ({LAYER_INPUT} - saved.on_host))

    def offloaded_bytes(self, shard: Shard, saved: SavedActivations | None) -> int:
        """Return the bytes per token that one layer saves in host memory."""
        return self._named_bytes(shard, saved, saved.on_host) if saved and not self.is_forward_only else 0

    def _adaptation_flops(self, shard: Shard, saved: SavedActivations | None) -> PassFlops:
        if not self.adaptation:
            return PassFlops(0, 0, 0)
        return self.adaptation.flops(self.tensors_by_name, shard, saved, is_last_used=self.mlp_output_norm is not None)

    def _named_bytes(self, shard: Shard, saved: SavedActivations, names: AbstractSet[str]) -> int:
        stream = self.attention.width * shard.compute_bytes if LAYER_INPUT in names else 0
        activations = self.activations(shard, saved.names)
        named = [activation.num_bytes for activation in activations if activation.name in names]
        return stream // self.count_stream_shards(shard) + sum(named)

    def count_stream_shards(self, shard: Shard) -> int:
        """Return the shards of a device's tokens in the residual stream."""
        return shard.degrees.get("tensor", 1) if self.shards_stream else 1

    def backward_bytes(self, shard: Shard, saved: SavedActivations | None) -> int:
        """Return the bytes per token of the layer whose backward pass runs: its activations, or their gradients too.

        They are an upper bound for a layer without a backward pass, and for one with frozen tensors.
        """
        costs = self._on(shard)
        if self.is_forward_only:
            return costs.saved_bytes
        if saved and costs.recomputed:
            return costs.recomputed.peak_bytes(saved.on_device, is_sharded=shard.ways["embed"] > 1)
        gradients = 0 if saved else costs.gradient_bytes
        total = costs.saved_bytes + gradients + costs.workspace_bytes
        if saved is None:
            return total
        kept = self._named_bytes(shard, saved, saved.on_device)  # with those of all other layers
        return total + costs.recomputation_bytes(saved.names) - kept

    @cached_property
    def _costs(self) -> dict[Hashable, LayerCosts]:
        return {}

    def _on(self, shard: Shard) -> LayerCosts:
        """Return the costs on a device. A search for a mesh reads each of them hundreds of times."""
        known = self._costs.get(shard.key)
        if known is None:
            known = self._costs[shard.key] = LayerCosts(self, shard)
        return known
