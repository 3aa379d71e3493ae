"""The model section: dimensions of the decoder and its experts.

The values that follow from `experts` for a sequence are derived here, for planner and trainer alike. Tokens compete for
capacity in groups inside one sequence. So dropped tokens depend neither on the mesh nor on the other sequences.
"""

import math
from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict


class Experts(Strict):
    """MLPs of which a router picks a few for each token (Shazeer et al., arXiv 1701.06538)."""

    count: Annotated[int, Field(ge=2, le=1024)] = Field(
        description="MLPs of a layer, each as wide as `model.mlpDim`. A router picks some of them for each token."
    )
    per_token: Annotated[int, Field(ge=1, le=64)] = Field(
        description="How many experts work on a token: those that the router scores highest."
    )
    scoring: Literal["softmax", "sigmoid"] = Field(
        default="softmax",
        description="What the router makes of its logits: a `softmax` over all experts, or for each expert a `sigmoid` "
        "of its own (DeepSeek-V3; arXiv 2412.19437). An expert's score is its weight.",
    )
    normalize_weights: bool = Field(
        default=False, description="Scale the weights of a token's experts so that they add up to 1."
    )
    weight_scale: Annotated[float, Field(gt=0, le=1000)] = Field(
        default=1.0, description="Multiplies the weights of a token's experts, after they were made to add up to 1."
    )
    capacity_factor: Annotated[float, Field(gt=0, le=1024)] = Field(
        default=1.25,
        description="Places of an expert, as a multiple of its even share of a group's tokens. Tokens that find no "
        "place skip the expert; `count` / `perToken` is room for all.",
    )
    group_length: Annotated[int, Field(ge=1, le=1048576)] | None = Field(
        default=None,
        description="Tokens of a sequence that compete for the same places; must divide `training.sequenceLength`. "
        "Sending tokens to experts costs in proportion to it. Unset: the whole sequence.",
    )
    shared: Annotated[int, Field(ge=0, le=64)] = Field(
        default=0, description="Experts that work on every token, beside those that the router picks."
    )
    load_balance_weight: Annotated[float, Field(ge=0, le=100)] = Field(
        default=0.01,
        description="Weight of the loss that spreads tokens evenly over experts (Fedus et al., arXiv 2101.03961), "
        "which each layer adds to the trained loss. 0 turns it off.",
    )

    def group_size(self, sequence_length: int) -> int:
        """Return the size of a routing group in tokens."""
        return self.group_length or sequence_length

    def capacity(self, sequence_length: int) -> int:
        """Return the capacity of an expert for each routing group, at most the size of the group."""
        tokens = self.group_size(sequence_length)
        return min(math.ceil(tokens * self.per_token * self.capacity_factor / self.count), tokens)


Dim = Annotated[int, Field(ge=1, le=1048576)]


class Model(Strict):
    """A Llama-style decoder: RMS norm, rotary positions, grouped-query attention, and a gated SiLU MLP or experts."""

    vocab_size: Dim = Field(description="Rows of the embedding table. Must cover every id of the tokenizer.")
    embed_dim: Dim = Field(description="Width of the residual stream.")
    mlp_dim: Dim = Field(description="Hidden width of each layer's gated MLP.")
    num_layers: Annotated[int, Field(ge=1, le=1024)] = Field(description="How many decoder layers are stacked.")
    num_heads: Annotated[int, Field(ge=1, le=1024)] = Field(description="Query heads of each layer's attention.")
    num_kv_heads: Annotated[int, Field(ge=1, le=1024)] = Field(
        description="Number of key and value heads. Must divide `numHeads`; equal to it is multi-head attention."
    )
    head_dim: Annotated[int, Field(ge=2, le=1024)] = Field(description="Width of a head. Must be even (rotary pairs).")
    rope_theta: Annotated[float, Field(ge=1, le=1e9)] = Field(
        default=10000.0, description="Base of the rotary position frequencies."
    )
    norm_epsilon: Annotated[float, Field(gt=0, le=0.1)] = Field(
        default=1e-5, description="Added to the mean square before the root in every RMS norm."
    )
    tie_embeddings: bool = Field(default=False, description="Use the embedding table as the output projection too.")
    init_scale: Annotated[float, Field(gt=0, le=10)] = Field(
        default=0.02, description="Standard deviation of the embedding table's initial values."
    )
    experts: Experts | None = Field(
        default=None,
        description="Make every layer a mixture of experts: several MLPs, of which each token uses a few. Unset: one "
        "MLP a layer, for all tokens.",
    )
