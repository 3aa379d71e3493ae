"""Groups of layers with a repeating pattern of blocks, between an embedding and an output head."""

import math
from collections.abc import Hashable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from trainingjob_api.network.activations import LAYER_INPUT, MLP_OUTPUT, Activation, SavedActivations
from trainingjob_api.network.adapter import Adaptation
from trainingjob_api.network.attention import GroupedQueryAttention
from trainingjob_api.network.attention_kernel import KernelChoice
from trainingjob_api.network.embedding import Embedding, Head
from trainingjob_api.network.latent_attention import LatentAttention
from trainingjob_api.network.layer_costs import LayerCosts
from trainingjob_api.network.mlp import DenseMlp
from trainingjob_api.network.multi_token_prediction import PREDICTION_PREFIX, PredictionModules
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.part import Part, PassFlops, Shard
from trainingjob_api.network.quantized_matmuls import QuantizedMatmuls
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.network.tensor import Gradients, Role, Tensor, mark_frozen
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


@dataclass(frozen=True)
class Group:
    """Layers of a repeating pattern. The parameters of its repeats are stacked."""

    name: str
    pattern: tuple[Block, ...]
    repeats: int

    def on(self, accelerator: str, exchange: Exchange, *, shards_stream: bool) -> "Group":
        """Return the layers with the kernels of an accelerator, and an exchange along `context`."""
        blocks = (block.on(accelerator, exchange, shards_stream=shards_stream) for block in self.pattern)
        return replace(self, pattern=tuple(blocks))

    def prefix(self, position: int) -> str:
        """Return what the names of a block's tensors begin with. A pattern of one block has no positions."""
        return f"{self.name}." if len(self.pattern) == 1 else f"{self.name}.{position}."

    @property
    def tensors(self) -> Iterator[Tensor]:
        """Yield the stacked tensors."""
        for position, block in enumerate(self.pattern):
            for tensor in block.tensors:
                yield tensor.stack(self.prefix(position), self.repeats)


@dataclass(frozen=True)
class Network:
    """A decoder."""

    embedding: Embedding
    groups: tuple[Group, ...]
    norm: HiddenNorm
    head: Head
    frozen: frozenset[str] = frozenset()
    """Names of the tensors outside of the layers that training does not change."""
    prediction: PredictionModules | None = None
    """Modules that predict further tokens. None: there are none."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # caches of the planner look a network up thousands of times
        return hash((self.embedding, self.groups, self.norm, self.head, self.frozen, self.prediction))

    @lru_cache(maxsize=64)  # noqa: B019  # few networks, of which a strategy search asks for one thousands of times
    def on(self, accelerator: str, exchange: Exchange = "gather", *, shards_stream: bool = False) -> "Network":
        """Return the network with the kernels of an accelerator of the hardware table.

        `exchange`: how the devices along `context` exchange keys and values. `shards_stream`: whether `tensor` shards
        the residual stream along the sequence.
        """
        prediction = self.prediction.on(accelerator, exchange) if self.prediction else None
        groups = tuple(group.on(accelerator, exchange, shards_stream=shards_stream) for group in self.groups)
        return replace(self, groups=groups, prediction=prediction)

    @property
    def accelerator(self) -> str:
        """Return the name in the hardware table of the accelerator that runs the network. Empty: not known."""
        return next((block.attention.accelerator for block in self.blocks), "")

    @property
    def exchange(self) -> Exchange:
        """Return how the devices along `context` exchange keys and values."""
        return next(block.attention.exchange for block in self.blocks)

    def choose_kernels(self, shard: Shard) -> tuple[KernelChoice[str], ...]:
        """Return the different kernels for a device's share of a sequence, in the order of the layers."""
        attention: list[KernelChoice[str]] = [block.attention.choose_kernel(shard) for block in self.blocks]
        experts = [block.mlp.choose_kernel() for block in self.blocks if isinstance(block.mlp, RoutedMlp)]
        return tuple(dict.fromkeys([*attention, *experts]))

    @property
    def width(self) -> int:
        """Return the width of the residual stream."""
        return self.embedding.width

    @property
    def vocab_size(self) -> int:
        """Return the number of token ids."""
        return self.embedding.vocab_size

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return all parameter tensors, with their names in the model."""
        last = (*(tensor.nest("norm.") for tensor in self.norm.tensors), *self.head.tensors)
        return (
            *mark_frozen(self.embedding.tensors, self.frozen, Gradients.NONE),
            *(tensor for group in self.groups for tensor in group.tensors),
            *(self.prediction.tensors if self.prediction else ()),
            *mark_frozen(last, self.frozen, Gradients.INPUT),
        )

    @cached_property
    def quantized(self) -> Mapping[str, Tensor]:
        """Return the tensors whose matmuls are quantized, by name."""
        blocks = [
            (group.prefix(position), block) for group in self.groups for position, block in enumerate(group.pattern)
        ]
        blocks += [(PREDICTION_PREFIX, self.prediction.block)] if self.prediction else []
        names = {f"{prefix}{name}" for prefix, block in blocks if block.quantized for name in block.quantized.names}
        return {tensor.name: tensor for tensor in self.tensors if tensor.name in names}

    @property
    def table(self) -> Tensor:
        """Return the embedding table."""
        return self.tensors[0]

    @property
    def head_matrix(self) -> Tensor:
        """Return the matrix of the output projection, which may be the embedding table."""
        return self.table if self.head.is_tied else self.tensors[-1]

    @cached_property
    def has_backward(self) -> bool:
        """Return whether training changes tensors before the output projection, so that its input has a gradient."""
        return any(tensor.is_trainable for tensor in self.tensors if tensor.role is not Role.HEAD)

    @property
    def num_predictions(self) -> int:
        """Return the number of tokens that training predicts at each position: the next one, and further ones."""
        return 1 + (self.prediction.options.depth if self.prediction else 0)

    @property
    def num_head_matmuls(self) -> int:
        """Return the matmuls of the output projection: forward, and those of the gradients that training needs."""
        return self.num_predictions * (1 + self.has_backward + self.head_matrix.is_trainable)

    @cached_property
    def blocks(self) -> Mapping[Block, int]:
        """Return the different blocks, and the number of layers of each, with those of modules of further tokens."""
        counts = dict(self.layer_blocks)
        for block, count in self.module_blocks.items():
            counts[block] = counts.get(block, 0) + count
        return counts

    @cached_property
    def layer_blocks(self) -> Mapping[Block, int]:
        """Return the different blocks of the layers, which pipeline stages divide, and the number of each."""
        counts: dict[Block, int] = {}
        for group in self.groups:
            for block in group.pattern:
                counts[block] = counts.get(block, 0) + group.repeats
        return counts

    @cached_property
    def module_blocks(self) -> Mapping[Block, int]:
        """Return the block of the modules of multi-token prediction, which run after the last stage, and their number.

        It is empty without modules.
        """
        return {self.prediction.block: self.prediction.options.depth} if self.prediction else {}

    @cached_property
    def num_parameters(self) -> int:
        """Return the number of parameters."""
        return sum(tensor.size for tensor in self.tensors)

    @cached_property
    def num_trainable_parameters(self) -> int:
        """Return the number of parameters that training changes."""
        return sum(tensor.size for tensor in self.tensors if tensor.is_trainable)

    @property
    def frozen_names(self) -> frozenset[str]:
        """Return the names of the tensors that training does not change."""
        return frozenset(tensor.name for tensor in self.tensors if not tensor.is_trainable)

    @cached_property
    def num_active_parameters(self) -> int:
        """Return the number of parameters that are active per token: of the routed experts, those that it uses."""
        inactive = (
            count * (tensor.size - block.part_of(tensor).active_size(tensor))
            for block, count in self.blocks.items()
            for tensor in block.tensors
        )
        return self.num_parameters - sum(inactive)

    @property
    def num_routed_layers(self) -> int:
        """Return the number of layers with experts."""
        return sum(count for block, count in self.blocks.items() if isinstance(block.mlp, RoutedMlp))

    @property
    def balance_rate(self) -> float | None:  # None: no layer has such biases
        """Return the change per step of the biases that balance the choice of experts."""
        rates = (block.mlp.experts.balance.bias_rate for block in self.blocks if isinstance(block.mlp, RoutedMlp))
        return next(rates, None)

    @property
    def load_balance_weight(self) -> float:
        """Return the weight of the load-balancing loss in the loss of a step; 0 without experts."""
        weights = (block.mlp.experts.balance.loss_weight for block in self.blocks if isinstance(block.mlp, RoutedMlp))
        return next(weights, 0.0)

    @cached_property
    def common_dims(self) -> Mapping[str, int]:
        """Return the greatest common divisor of all dims of each logical axis. A mesh degree must divide it."""
        dims: dict[str, int] = {}
        for tensor in self.tensors:
            for axis, size in zip(tensor.axes, tensor.shape, strict=True):
                dims[axis] = math.gcd(dims.get(axis, 0), size)
        # The stages of a pipeline hold equal parts of one group.
        return dims | {"layers": dims["layers"] if len(self.groups) == 1 else 1}
