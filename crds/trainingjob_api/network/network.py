"""Groups of layers with a repeating pattern of blocks, between an embedding and an output head."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from trainingjob_api.network.attention_kernel import KernelChoice
from trainingjob_api.network.block import Block
from trainingjob_api.network.embedding import Embedding, Head
from trainingjob_api.network.multi_token_prediction import PREDICTION_PREFIX, PredictionModules
from trainingjob_api.network.norm import HiddenNorm
from trainingjob_api.network.part import Shard
from trainingjob_api.network.routed_mlp import RoutedMlp
from trainingjob_api.network.tensor import Gradients, Role, Tensor, mark_frozen
from trainingjob_api.token_order import Exchange


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
