"""The model section: dimensions of the decoder, and the options of its parts.

The options of a part are declared beside what follows from them, in a module of `network`.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler
from pydantic_core import CoreSchema

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, Unit, cel_rule
from trainingjob_api.network.attention import Attention, HeadSizes
from trainingjob_api.network.embedding import Logits
from trainingjob_api.network.latent_attention import Latent
from trainingjob_api.network.layers import Layers
from trainingjob_api.network.matrix_init import MatrixInit
from trainingjob_api.network.mlp import Mlp
from trainingjob_api.network.multi_token_prediction import MultiTokenPrediction
from trainingjob_api.network.norm import Norm
from trainingjob_api.network.rope import Rope
from trainingjob_api.network.routed_mlp import Experts

Dim = Annotated[int, Field(ge=1, le=1048576)]
MAX_HEAD_DIM = 1024
Rate = Annotated[float, Field(ge=0, lt=1), NO_UNIT, Example(0.1)]


class Init(Strict):
    """Distribution of the initial parameters."""

    std: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(0.02)] = Field(
        default=0.02, description="Standard deviation of the embedding table's initial values."
    )
    matrices: MatrixInit = Field(
        default=MatrixInit(), description="Initial values of the matrices of layers and of the output projection."
    )


class Dropout(Strict):
    """Shares of hidden features that training sets to 0. Evaluations and generated texts use all features."""

    residual: Rate = Field(
        default=0.0,
        description="Share of the features that attention and MLPs add to the residual stream (`resid_pdrop` of "
        "GPT-2).",
    )
    embedding: Rate = Field(
        default=0.0,
        description="Share of the features of the embeddings of tokens and positions (`embd_pdrop` of GPT-2).",
    )


class Model(Strict):
    """A decoder. By default it is that of Llama: RMS norms, rotary positions, grouped queries and gated SiLU MLPs."""

    preset: Annotated[Annotated[str, Field(min_length=1, max_length=63)] | None, Example("llama3.1-8b")] = Field(
        default=None,
        description="Published model whose values the unset fields have; `trainingjob presets` lists them. Unset: "
        "none.",
    )
    vocab_size: Annotated[Dim, Unit("token ids"), Example(257)] = Field(
        description="Number of rows of the embedding table. It must cover every id of the tokenizer."
    )
    embed_dim: Annotated[Dim, Unit("features"), Example(128)] = Field(description="Width of the residual stream.")
    mlp_dim: Annotated[Dim, Unit("features"), Example(384)] = Field(
        description="Hidden width of the MLP of each layer."
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
    attention: Attention = Field(default=Attention(), description="Attention layers: norms, biases, windows, scores.")
    latent_attention: Latent | None = Field(
        default=None,
        description="Attention with latent vectors, as in DeepSeek, instead of `numKvHeads` and `headDim`. Unset: "
        "grouped-query attention.",
    )
    mlp: Mlp = Field(default=Mlp(), description="MLPs of the layers, and those of experts.")
    norm: Norm = Field(default=Norm(), description="Norms of the layers and at the end.")
    positions: Annotated[Literal["rope", "learned", "none"], Example("rope")] = Field(
        default="rope",
        description="Positions of tokens: rotary embeddings of queries and keys, a learned table that is added to "
        "the embeddings (GPT-2), or none.",
    )
    max_positions: Annotated[Annotated[int, Field(ge=1, le=10000000)] | None, Unit("tokens"), Example(1024)] = Field(
        default=None,
        description="Rows of the table of learned positions, at least `training.sequenceLength`. `positions: learned` "
        "requires it.",
    )
    rope: Rope = Field(default=Rope(), description="Rotary position embeddings of queries and keys.")
    layers: Layers | None = Field(default=None, description="Layers that differ. Unset: all are alike.")
    tie_embeddings: Annotated[bool, Example(False)] = Field(
        default=False, description="Uses the embedding table as the output projection too."
    )
    init: Init = Field(default=Init(), description="Initial values of the parameters.")
    dropout: Dropout = Field(default=Dropout(), description="Dropout of hidden states in training.")
    embedding_scale: Annotated[float, Field(gt=0, le=100000), NO_UNIT, Example(1.0)] = Field(
        default=1.0,
        description="Factor on the embeddings of tokens: in Gemma, the square root of `embedDim`.",
    )
    logits: Logits = Field(default=Logits(), description="Factor and limit of the logits.")
    experts: Experts | None = Field(
        default=None,
        description="Mixture of experts in the layers: each token uses a few of several MLPs. Unset: one MLP in each "
        "layer.",
    )
    multi_token_prediction: MultiTokenPrediction | None = Field(
        default=None,
        description="Modules that predict further tokens during training, as in DeepSeek-V3. Unset: the model "
        "predicts the next token only.",
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        """Return the schema without required fields: a preset may have their values."""
        schema = handler.resolve_ref_schema(handler(core_schema))
        return {key: value for key, value in schema.items() if key != "required"}

    @property
    def kv_heads(self) -> int:
        """Return the number of key and value heads: by default that of the query heads."""
        return self.num_kv_heads or self.num_heads

    @property
    def heads(self) -> HeadSizes:
        """Return the heads. A default width is rounded down; validation rejects one that is not exact."""
        if self.latent_attention:
            return HeadSizes(self.num_heads, self.num_heads, self.latent_attention.head_dim)
        head_dim = self.head_dim or max(self.embed_dim // self.num_heads, 1)
        return HeadSizes(self.num_heads, self.kv_heads, head_dim)


Model.cel_rules = tuple(
    cel_rule(f"has(self.preset) || has(self.{field.alias})", "must be set, unless `preset` is.", str(field.alias))
    for field in Model.model_fields.values()
    if field.is_required()
)
