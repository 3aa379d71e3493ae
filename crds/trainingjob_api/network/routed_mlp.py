"""Mixture of experts: MLPs of which a router picks a few for each token, with capacity slots in routing groups.

The values that follow from the options for a sequence are derived here, for planner and trainer alike. Tokens compete
for capacity in groups inside one sequence. So dropped tokens depend neither on the mesh nor on the other sequences.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit
from trainingjob_api.network.activations import Activation
from trainingjob_api.network.attention_kernel import ExpertKernelName, KernelChoice
from trainingjob_api.network.matrix_init import BY_WIDTH, InitRule
from trainingjob_api.network.mlp import DenseMlp, Mlp, make_matrices
from trainingjob_api.network.part import (
    BACKWARD_FLOPS,
    FLOAT32,
    FORWARD_FLOPS,
    GradientInput,
    Part,
    PartTraffic,
    PassFlops,
    Shard,
    find_product,
)
from trainingjob_api.network.tensor import DecayClass, Role, Storage, Tensor, Zeros, make_bias


class Balance(Strict):
    """How the router learns to give all experts as many tokens."""

    loss_weight: Annotated[float, Field(ge=0, le=100), NO_UNIT, Example(0.01)] = Field(
        default=0.01,
        description="Weight of the load-balancing loss of each layer (Fedus et al., arXiv 2101.03961).",
    )
    bias_rate: Annotated[Annotated[float, Field(gt=0, le=1)] | None, Unit("per step"), Example(0.001)] = Field(
        default=None,
        description="Step of a bias that balances the choice of experts, by the sign of the load of each (Wang et "
        "al., arXiv 2408.15664). Unset: no bias.",
    )


class ExpertGroups(Strict):
    """Groups of experts: a token's experts are of those groups whose best experts have the highest scores."""

    count: Annotated[int, Field(ge=2, le=1024), Unit("groups"), Example(2)] = Field(
        description="Number of groups, a divisor of `experts.count`."
    )
    per_token: Annotated[int, Field(ge=1, le=1024), Unit("groups"), Example(1)] = Field(
        description="Number of groups whose experts a token may use."
    )
    score: Annotated[Literal["best", "sumOfTwo"], Example("sumOfTwo")] = Field(
        default="sumOfTwo",
        description="Score of a group: that of its `best` expert (DeepSeek-V2), or the sum of its two best "
        "(DeepSeek-V3).",
    )


class Experts(Strict):
    """MLPs of which a router picks a few for each token (Shazeer et al., arXiv 1701.06538)."""

    count: Annotated[int, Field(ge=2, le=1024), Unit("experts"), Example(8)] = Field(
        description="Number of expert MLPs in a layer."
    )
    per_token: Annotated[int, Field(ge=1, le=64), Unit("experts"), Example(2)] = Field(
        description="Number of experts that process each token, those with the highest router scores."
    )
    mlp_dim: Annotated[Annotated[int, Field(ge=1, le=1048576)] | None, Unit("features"), Example(384)] = Field(
        default=None, description="Hidden width of each expert. Unset: `model.mlpDim`."
    )
    router_bias: Annotated[bool, Example(False)] = Field(
        default=False, description="Adds a learned bias to the logits of the router, as in gpt-oss."
    )
    weighting: Annotated[Literal["output", "input"], Example("output")] = Field(
        default="output",
        description="Value of an expert that its weight scales: its `output`, or its `input` as in Llama 4.",
    )
    groups: ExpertGroups | None = Field(
        default=None, description="Groups of experts of which each token uses a few (DeepSeek-V2). Unset: one group."
    )
    scoring: Annotated[Literal["softmax", "sigmoid"], Example("softmax")] = Field(
        default="softmax",
        description="Scores from router logits: `softmax` over all experts, or an independent `sigmoid` for each "
        "expert (DeepSeek-V3; arXiv 2412.19437). The score is the expert's weight.",
    )
    normalize_weights: Annotated[bool, Example(True)] = Field(
        default=False, description="Scales the weights of a token's experts so that their sum is 1."
    )
    weight_scale: Annotated[float, Field(gt=0, le=1000), NO_UNIT, Example(1.0)] = Field(
        default=1.0, description="Factor on the weights of a token's experts, applied after normalization."
    )
    dispatch: Annotated[Literal["capacity", "dropless"], Example("dropless")] = Field(
        default="capacity",
        description="Way of tokens to their experts. `capacity` gives an expert a fixed number of slots; `dropless` "
        "sorts tokens by expert, drops none, and ignores `capacityFactor`.",
    )
    capacity_factor: Annotated[float, Field(gt=0, le=1024), Unit("times an even share"), Example(1.25)] = Field(
        default=1.25,
        description="Expert capacity, as a multiple of the even share of a routing group's tokens. Tokens beyond it "
        "skip the expert; `count` / `perToken` drops none.",
    )
    group_length: Annotated[Annotated[int, Field(ge=1, le=1048576)] | None, Unit("tokens"), Example(64)] = Field(
        default=None,
        description="Number of tokens in a routing group, a divisor of `training.sequenceLength`; the cost of "
        "dispatch grows with it. Unset: the whole sequence.",
    )
    shared: Annotated[int, Field(ge=0, le=64), Unit("experts"), Example(1)] = Field(
        default=0, description="Number of shared experts, which process every token beside the routed ones."
    )
    balance: Balance = Field(default=Balance(), description="Balance of the load among the experts.")

    @property
    def full_capacity(self) -> float:
        """Return the capacity factor with which an expert has slots for all tokens."""
        return self.count / self.per_token

    def with_all_slots(self) -> "Experts":
        """Return experts that compute what dropless ones do, with a capacity slot for each token."""
        return self.model_copy(update={"dispatch": "capacity", "capacity_factor": self.full_capacity})

    def group_size(self, sequence_length: int) -> int:
        """Return the size of a routing group in tokens."""
        return self.group_length or sequence_length

    def capacity(self, sequence_length: int) -> int:
        """Return the capacity of an expert for each routing group, at most the size of the group."""
        tokens = self.group_size(sequence_length)
        return min(math.ceil(tokens * self.per_token * self.capacity_factor / self.count), tokens)


@dataclass(frozen=True)
class RoutedMlp(Part):
    """Routed experts, and one MLP that all shared experts form."""

    width: int
    hidden: int
    """Hidden width of each expert."""
    experts: Experts
    options: Mlp
    init: InitRule = BY_WIDTH

    def choose_kernel(self) -> KernelChoice[ExpertKernelName]:
        """Return the kernel of the routed experts."""
        if self.experts.dispatch == "dropless":
            return KernelChoice("experts", "ragged_dot", "`experts.dispatch` is dropless")
        return KernelChoice("experts", "one_hot", "`experts.dispatch` is capacity")

    @cached_property
    def shared(self) -> DenseMlp | None:  # None: no experts are shared
        """Return the shared experts as one MLP."""
        hidden = self.experts.shared * self.hidden
        return DenseMlp(self.width, hidden, self.options, self.init) if hidden else None

    @cached_property
    def own_tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of the router and of the routed experts."""
        width, count, init = self.width, self.experts.count, self.init.of_inputs(self.width)
        router = Tensor("router", (width, count), ("embed", "router"), init, DecayClass.ROUTER, Role.INPUT)
        router_biases = (make_bias(router),) if self.experts.router_bias else ()
        biases = (make_bias(matrix) for matrix in self._matrices if self.options.bias)
        # Its steps are constant: in bfloat16 a bias above 0.5 would stay where it is.
        balance = Tensor(
            "balance_bias", (count,), ("router",), Zeros(), DecayClass.BIAS, Role.BALANCE, storage=Storage.FLOAT32
        )
        balances = (balance,) if self.experts.balance.bias_rate else ()
        return (router, *self._matrices, *router_biases, *balances, *biases)

    @property
    def _matrices(self) -> tuple[Tensor, ...]:
        """Return the matrices of the experts."""
        count = self.experts.count
        matrices = make_matrices(self.width, self.hidden, self.options, self.init, DecayClass.EXPERT, "expert_embed")
        return tuple(
            replace(matrix, shape=(count, *matrix.shape), axes=("experts", *matrix.axes)) for matrix in matrices
        )

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Return the tensors of the router, the routed experts and the shared experts."""
        shared = self.shared.tensors if self.shared else ()
        return (*self.own_tensors, *(tensor.nest("shared.") for tensor in shared))

    def flops(self, shard: Shard) -> PassFlops:
        """Return the FLOPs of the matrices and of the routing, with the empty capacity slots of the mesh axis.

        Dispatch and combine are matmuls with one-hot matrices, forward and backward. Rematerialization repeats only the
        dispatch, because the backward pass does not need the combined result. Dropless experts compute one row for each
        of a token's experts, if all experts get equally many.
        """
        is_dropless = self.experts.dispatch == "dropless"
        moved = 0 if is_dropless else FORWARD_FLOPS * self._num_slots(shard.length) * self.width
        size = sum([self.product_size(tensor, shard) for tensor in self.tensors if tensor.is_matrix])
        return PassFlops(
            FORWARD_FLOPS * size + 2 * moved, BACKWARD_FLOPS * size + 2 * moved, FORWARD_FLOPS * size + moved
        )

    def product_size(self, matrix: Tensor, shard: Shard) -> int:
        """Return the parameters that a token is multiplied with: those of experts for each slot of the mesh axis."""
        gathered, expert = matrix.gathered_size(shard.ways), shard.degrees.get("expert", 1)
        if matrix.decay is not DecayClass.EXPERT:
            return gathered
        if self.experts.dispatch == "dropless":
            return gathered * self.experts.per_token * expert // self.experts.count
        rows = self.experts.capacity(shard.length) * expert
        return gathered * rows // self.experts.group_size(shard.length)

    def activations(self, shard: Shard) -> tuple[Activation, ...]:
        """Return the products of the matrices: those of experts for each capacity slot, also an empty one.

        The products of dropless experts have no names: they are recomputed.
        """
        if self.experts.dispatch == "dropless":
            return self.shared.activations(shard) if self.shared else ()
        slots = (
            self.experts.capacity(shard.length) * shard.degrees.get("expert", 1) / self.experts.group_size(shard.length)
        )
        shared = self.shared.activations(shard) if self.shared else ()
        return (*(find_product(matrix, shard, slots) for matrix in self._matrices), *shared)

    def active_size(self, tensor: Tensor) -> int:
        """Return the parameters of the experts that a token uses, or all of another tensor."""
        return (
            tensor.size // self.experts.count * self.experts.per_token if tensor.axes[0] == "experts" else tensor.size
        )

    def saved_bytes(self, shard: Shard) -> int:
        """Return the bytes of the experts' values, of the routing, and of the shared experts.

        Dropless experts have capacity for all tokens of the devices along `expert`: all may choose the same ones.
        """
        expert_bytes = self.options.saved_values * shard.compute_bytes * shard.split(self.hidden, "mlp")
        row, routing = expert_bytes + 3 * shard.compute_bytes * self.width, 4 * FLOAT32 * self.experts.count
        if self.experts.dispatch == "dropless":
            rows = self._num_rows(shard)
            # The four numbers of a row: its expert, order, slot and weight.
            return rows * (row + 4 * FLOAT32) + routing + self.experts.shared * expert_bytes
        slots = self._num_slots(shard.length)
        in_slots = slots * row // self.experts.group_size(shard.length)
        return in_slots + slots * shard.compute_bytes + routing + self.experts.shared * expert_bytes

    def gradient_inputs(self, shard: Shard) -> tuple[GradientInput, ...]:
        """Return what the matrices of the routed experts read, and what those of the shared experts read."""
        if self.experts.dispatch == "dropless":
            slots, tokens = self._num_rows(shard), 1
        else:
            slots, tokens = self._num_slots(shard.length), self.experts.group_size(shard.length)
        first = frozenset(matrix.name for matrix in self._matrices if matrix.name != "down")
        hidden = shard.split(self.hidden, "mlp")
        shared = self.shared.gradient_inputs(shard) if self.shared else ()
        return (
            GradientInput(first, slots * shard.compute_bytes * self.width // tokens),
            GradientInput(frozenset({"down"}), slots * shard.compute_bytes * hidden // tokens),
            *(gradient_input.nest("shared.") for gradient_input in shared),
        )

    def scaling_bytes(self, shard: Shard) -> int:
        """Return the bytes per token of int8 products of dropless experts, in int32, and of the scales of their rows.

        Those of the two input projections exist at once: programs that XLA compiled hold them all.
        """
        if self.experts.dispatch == "capacity":
            return 0
        return self._num_rows(shard) * 2 * 2 * FLOAT32 * shard.split(self.hidden, "mlp")

    def traffic(self, length: int) -> PartTraffic:
        """Return the sums for each capacity slot, also an empty one, and the tokens that move to slots and back.

        Dropless experts gather all tokens along `expert`, and sum their results there and over `tensor`. They sum the
        gradients of a device's own tokens over `tensor`. These sums are in float32, which counts twice.
        """
        shared, separate = self.experts.shared, int(self.options.gated)
        if self.experts.dispatch == "dropless":
            return PartTraffic(
                tensor_sums=2 * shared + 2,
                gathered_sums=2,
                separate_sums=separate,
                gathered_tokens=1.5,
                recomputed_tokens=1,
            )
        slots = self._num_slots(length) / self.experts.group_size(length) + shared
        return PartTraffic(tensor_sums=2 * slots, separate_sums=separate, expert_slots=slots)

    def _num_rows(self, shard: Shard) -> int:
        """Return the rows of dropless experts per token, if all tokens along `expert` choose those of one device."""
        return self.experts.per_token * shard.degrees.get("expert", 1)

    def _num_slots(self, length: int) -> int:
        """Return the capacity slots of a routing group."""
        return self.experts.count * self.experts.capacity(length)
