"""Training sections of the spec: model, training, optimizer, schedule, precision, memory."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.experts import Experts

Dim = Annotated[int, Field(ge=1, le=1048576)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Remat = Literal["none", "full"]
FloatType = Literal["float32", "bfloat16"]


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


class Training(Strict):
    """Training length, batch size and sequence length. They do not depend on the number of slices."""

    steps: Annotated[int, Field(ge=1, le=100_000_000)] = Field(description="Optimizer steps until the job succeeds.")
    global_batch_size: Annotated[int, Field(ge=1, le=1_048_576)] = Field(
        description="Sequences an optimizer step, the same at every number of slices."
    )
    sequence_length: Annotated[int, Field(ge=2, le=1_048_576)] = Field(
        description="Tokens a sequence. Each row of a batch is one sequence."
    )
    seed: Annotated[int, Field(ge=0, le=2_147_483_647)] = Field(
        default=0, description="Seeds the initial parameters and the order of the data."
    )
    max_per_device_batch: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        default=None,
        description="The most sequences a device holds at once; the rest is accumulated over microsteps. "
        "Unset: as many as the memory estimate allows.",
    )


class Optimizer(Strict):
    """AdamW (Loshchilov and Hutter, arXiv 1711.05101) with clipping by the global norm."""

    type: Literal["adamw"] = Field(
        default="adamw", description="Which rule makes updates: `adamw`, Adam with decoupled weight decay."
    )
    learning_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        description="Peak learning rate, reached when the warm-up ends."
    )
    beta1: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.9, description="Decay of the first moment.")
    beta2: Annotated[float, Field(ge=0, lt=1)] = Field(default=0.95, description="Decay of the second moment.")
    epsilon: Annotated[float, Field(gt=0, le=0.1)] = Field(
        default=1e-8, description="Added to the root of the second moment, against division by zero."
    )
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.1, description="Decoupled weight decay of all matrices; norms are not decayed."
    )
    clip_norm: Annotated[float, Field(ge=0, le=1e6)] = Field(
        default=1.0, description="Gradients are scaled down to this global norm. 0 turns clipping off."
    )


class Schedule(Strict):
    """The learning rate over the steps: a linear warm-up from 0, then the decay to `finalFraction` of the peak."""

    type: Literal["constant", "linear", "cosine"] = Field(
        default="cosine", description="Shape of the decay after the warm-up."
    )
    warmup_steps: Annotated[int, Field(ge=0, le=100_000_000)] = Field(
        default=0, description="Steps of linear warm-up. Must be fewer than `training.steps`."
    )
    final_fraction: Fraction = Field(
        default=0.1, description="The last step's share of the peak learning rate. `constant` ignores it."
    )


class Precision(Strict):
    """Number formats. Losses, gradients' accumulation and optimizer moments are always float32."""

    compute: FloatType = Field(default="bfloat16", description="Format of matrix products and activations.")
    params: FloatType = Field(default="float32", description="Format in which parameters are stored.")


class Memory(Strict):
    """Activation memory: rematerialization and layer scanning."""

    remat: Remat = Field(
        default="none", description="`full` keeps only each layer's input and computes the rest again going backward."
    )
    scan: bool = Field(
        default=True, description="Run the layers as one compiled loop: compile time does not grow with depth."
    )
