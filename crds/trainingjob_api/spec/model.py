"""The model section: dimensions of the decoder, its attention and its experts.

The values that follow from `experts` for a sequence are derived here, for planner and trainer alike. Tokens compete for
capacity in groups inside one sequence. So dropped tokens depend neither on the mesh nor on the other sequences.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit


class Balance(Strict):
    """How the router learns to give all experts as many tokens."""

    loss_weight: Annotated[float, Field(ge=0, le=100), NO_UNIT, Example(0.01)] = Field(
        default=0.01,
        description="Weight of the load-balancing loss of each layer (Fedus et al., arXiv 2101.03961).",
    )


class Experts(Strict):
    """MLPs of which a router picks a few for each token (Shazeer et al., arXiv 1701.06538)."""

    count: Annotated[int, Field(ge=2, le=1024), Unit("experts"), Example(8)] = Field(
        description="Number of expert MLPs in a layer, each of width `model.mlpDim`."
    )
    per_token: Annotated[int, Field(ge=1, le=64), Unit("experts"), Example(2)] = Field(
        description="Number of experts that process each token, those with the highest router scores."
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

    def group_size(self, sequence_length: int) -> int:
        """Return the size of a routing group in tokens."""
        return self.group_length or sequence_length

    def capacity(self, sequence_length: int) -> int:
        """Return the capacity of an expert for each routing group, at most the size of the group."""
        tokens = self.group_size(sequence_length)
        return min(math.ceil(tokens * self.per_token * self.capacity_factor / self.count), tokens)


class Attention(Strict):
    """Options of the attention layers."""

    query_key_norm: Annotated[Literal["perHead"] | None, Example("perHead")] = Field(
        default=None,
        description="RMS norm of queries and keys before the rotary positions. `perHead` normalizes each head, with "
        "one learned scale for all heads of a layer, as in Qwen3.",
    )


Dim = Annotated[int, Field(ge=1, le=1048576)]
MAX_HEAD_DIM = 1024


class Norm(Strict):
    """RMS norm (Zhang and Sennrich, arXiv 1910.07467)."""

    epsilon: Annotated[float, Field(gt=0, le=0.1), NO_UNIT, Example(1e-5)] = Field(
        default=1e-5, description="Constant added to the mean square in every RMS norm."
    )


class Rope(Strict):
    """Rotary position embeddings (Su et al., arXiv 2104.09864)."""

    theta: Annotated[float, Field(ge=1, le=1e9), NO_UNIT, Example(10000.0)] = Field(
        default=10000.0, description="Base of the rotary position frequencies."
    )


class Init(Strict):
    """Distribution of the initial parameters."""

    std: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(0.02)] = Field(
        default=0.02, description="Standard deviation of the embedding table's initial values."
    )


class Model(Strict):
    """A Llama-style decoder: RMS norm, rotary positions, grouped-query attention, and a gated SiLU MLP or experts."""

    vocab_size: Annotated[Dim, Unit("token ids"), Example(257)] = Field(
        description="Number of rows of the embedding table. It must cover every id of the tokenizer."
    )
    embed_dim: Annotated[Dim, Unit("features"), Example(128)] = Field(description="Width of the residual stream.")
    mlp_dim: Annotated[Dim, Unit("features"), Example(384)] = Field(
        description="Hidden width of each layer's gated MLP."
    )
    num_layers: Annotated[int, Field(ge=1, le=1024), Unit("layers"), Example(4)] = Field(
        description="Number of decoder layers in the stack."
    )
    num_heads: Annotated[int, Field(ge=1, le=1024), Unit("heads"), Example(4)] = Field(
        description="Number of query heads in each attention layer."
    )
    num_kv_heads: Annotated[Annotated[int, Field(ge=1, le=1024)] | None, Unit("heads"), Example(4)] = Field(
        default=None,
        description="Number of key and value heads, a divisor of `numHeads`. Unset: `numHeads`, which is multi-head "
        "attention.",
    )
    head_dim: Annotated[Annotated[int, Field(ge=2, le=MAX_HEAD_DIM)] | None, Unit("features"), Example(32)] = Field(
        default=None,
        description="Width of a head, even for rotary pairs. Unset: `embedDim` divided by `numHeads`.",
    )
    attention: Attention = Field(default=Attention(), description="Attention layers: norm of queries and keys.")
    norm: Norm = Field(default=Norm(), description="RMS norms before attention, before the MLP and at the end.")
    rope: Rope = Field(default=Rope(), description="Rotary position embeddings of queries and keys.")
    tie_embeddings: Annotated[bool, Example(False)] = Field(
        default=False, description="Uses the embedding table as the output projection too."
    )
    init: Init = Field(default=Init(), description="Initial values of the parameters.")
    experts: Experts | None = Field(
        default=None,
        description="Mixture of experts in every layer: each token uses a few of several MLPs. Unset: one MLP in "
        "each layer.",
    )
