"""The optimizer section: its type, the hyperparameters of that type, and what all types share."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Strict
from trainingjob_api.meta import MODEL_STATE, NO_UNIT, Example, alternatives
from trainingjob_api.network.tensor import DecayClass

ALL_TENSORS = ("*",)
TensorPattern = Annotated[str, Field(min_length=1, max_length=253)]
Decay = Annotated[float, Field(ge=0, lt=1)]


class AdamW(Strict):
    """Hyperparameters of AdamW (Loshchilov and Hutter, arXiv 1711.05101)."""

    beta1: Annotated[Decay, NO_UNIT, Example(0.9)] = Field(default=0.9, description="Decay of the first moment.")
    beta2: Annotated[Decay, NO_UNIT, Example(0.95)] = Field(default=0.95, description="Decay of the second moment.")
    epsilon: Annotated[float, Field(gt=0, le=0.1), NO_UNIT, Example(1e-8)] = Field(
        default=1e-8, description="Constant added to the root of the second moment, against division by zero."
    )
    epsilon_root: Annotated[float, Field(ge=0, le=0.1), NO_UNIT, Example(1e-8)] = Field(
        default=0.0,
        description="Constant added to the second moment, inside the root.",
        exclude_if=lambda constant: constant == 0,  # an agent before 0.1 refuses a field that it does not know
    )


class Lion(Strict):
    """Hyperparameters of Lion (Chen et al., arXiv 2302.06675)."""

    beta1: Annotated[Decay, NO_UNIT, Example(0.9)] = Field(
        default=0.9, description="Share of the moment in an update; the gradient has the rest."
    )
    beta2: Annotated[Decay, NO_UNIT, Example(0.99)] = Field(default=0.99, description="Decay of the moment.")


class Muon(Strict):
    """Hyperparameters of Muon (Jordan, https://kellerjordan.github.io/posts/muon)."""

    momentum: Annotated[float, Field(gt=0, lt=1), NO_UNIT, Example(0.95)] = Field(
        default=0.95, description="Decay of the momentum of matrices, which is Nesterov momentum."
    )
    newton_schulz_steps: Annotated[int, Field(ge=1, le=20), NO_UNIT, Example(5)] = Field(
        default=5, description="Newton-Schulz iterations that orthogonalize the momentum of a matrix."
    )
    rms_scale: Annotated[float | None, Field(gt=0, le=10), NO_UNIT, Example(0.2)] = Field(
        default=None,
        description="Root mean square of an update of a matrix; 0.2 allows the learning rate of `adamw` (arXiv "
        "2502.16982). Unset: updates are orthogonal, times the root of outputs by inputs where that is above 1.",
    )
    adamw: AdamW = Field(
        default=AdamW(), description="Hyperparameters of AdamW for the embedding, the head, routers and vectors."
    )


class Sgd(Strict):
    """Hyperparameters of stochastic gradient descent (Sutskever et al., ICML 2013)."""

    momentum: Annotated[float | None, Field(gt=0, lt=1), NO_UNIT, Example(0.9)] = Field(
        default=None,
        description="Decay of the sum of gradients that replaces the gradient in an update. Unset: no momentum, and no "
        "optimizer state.",
    )
    nesterov: Annotated[bool, Example(True)] = Field(
        default=False, description="Nesterov momentum: an update looks one step ahead along the momentum."
    )


class Adafactor(Strict):
    """Hyperparameters of Adafactor (Shazeer and Stern, arXiv 1804.04235)."""

    decay_rate: Annotated[float, Field(gt=0, le=1), NO_UNIT, Example(0.8)] = Field(
        default=0.8,
        description="Exponent `c` of the decay of the second moment, which is `1 - t^-c` at update `t`.",
    )
    min_factored_size: Annotated[int, Field(ge=2, le=1_000_000), NO_UNIT, Example(128)] = Field(
        default=128,
        description="Least number of inputs and of outputs from which a matrix keeps means of rows and columns in "
        "place of its second moment.",
    )
    scale_by_parameters: Annotated[bool, Example(False)] = Field(
        default=True,
        description="Multiplies an update by the root mean square of its matrix or vector. `false`: the learning rate "
        "is that of `adamw`.",
    )


class WeightDecay(Strict):
    """Decoupled weight decay: each step moves parameters towards 0, whatever their gradients."""

    rate: Annotated[float, Field(ge=0, le=10), NO_UNIT, Example(0.1)] = Field(
        default=0.1, description="Share of a parameter that a step removes, before the factor of the learning rate."
    )
    exclude: Annotated[tuple[DecayClass, ...], Example(["norm", "bias"])] = Field(
        default=(DecayClass.NORM, DecayClass.BIAS),
        max_length=len(DecayClass),
        description="Kinds of tensors without weight decay.",
        json_schema_extra=LIST_TYPE_SET,
    )


class LearningRate(Strict):
    """Learning rate of some tensors, relative to that of the schedule."""

    tensors: Annotated[tuple[TensorPattern, ...], Example(["embedding"])] = Field(
        min_length=1,
        max_length=64,
        description="Names of the tensors, with `*` for any characters, such as `*.mlp.*`. `trainingjob plan "
        "--tensors` lists all names.",
        json_schema_extra=LIST_TYPE_SET,
    )
    scale: Annotated[float, Field(gt=0, le=1000), NO_UNIT, Example(0.1)] = Field(
        description="Factor of the learning rate of these tensors, and so of their weight decay."
    )


class Average(Strict):
    """Exponential moving average of the trained tensors (Polyak and Juditsky, 1992; arXiv 2411.18704)."""

    decay: Annotated[float, Field(gt=0, lt=1), NO_UNIT, Example(0.999)] = Field(
        default=0.999,
        description="Share of the average that an update keeps; the new values have the rest. After `t` updates it is "
        "at most `(1 + t) / (10 + t)`, so that random initial values leave the average early.",
    )


class Optimizer(Strict):
    """Optimizer with decoupled weight decay and clipping by the global norm."""

    type: Annotated[Literal["adamw", "adafactor", "lion", "muon", "sgd"], Example("adamw")] = Field(
        default="adamw",
        description="Kind of optimizer: `adamw` has decoupled weight decay, `muon` orthogonalizes updates of matrices, "
        "`sgd` is stochastic gradient descent. `lion` (arXiv 2302.06675) has half of the state of `adamw`, and "
        "`adafactor` keeps rows and columns of second moments.",
    )
    learning_rate: Annotated[float, Field(gt=0, le=10), NO_UNIT, Example(0.001)] = Field(
        description="Peak learning rate, reached when the warm-up ends."
    )
    learning_rates: tuple[LearningRate, ...] = Field(
        default=(),
        max_length=32,
        description="Tensors whose learning rate differs by a factor. The first item that names a tensor applies; the "
        "others have the factor 1.",
        exclude_if=lambda rates: not rates,  # an agent before 0.1 refuses a field that it does not know
    )
    weight_decay: WeightDecay = Field(
        default=WeightDecay(), description="Decoupled weight decay: its rate, and the tensors that have none."
    )
    clip_norm: Annotated[float, Field(ge=0, le=1e6), NO_UNIT, Example(1.0)] = Field(
        default=1.0, description="Global norm to which larger gradients are scaled down. 0 disables clipping."
    )
    clip_value: Annotated[float | None, Field(gt=0, le=1e6), NO_UNIT, Example(0.5)] = Field(
        default=None,
        description="Absolute value to which each gradient is limited, after `clipNorm`. Unset: no limit.",
        exclude_if=lambda limit: limit is None,
    )
    clip_update_rms: Annotated[float | None, Field(gt=0, le=1e6), NO_UNIT, Example(1.0)] = Field(
        default=None,
        description="Root mean square to which larger updates of a matrix or vector are scaled down (arXiv "
        "1804.04235), before weight decay and the learning rate. Unset: 1.0 with `adafactor`, otherwise no limit.",
        exclude_if=lambda limit: limit is None,
    )
    trainable: Annotated[
        tuple[TensorPattern, ...],
        Example(["layers.attention.*"]),
        MODEL_STATE,
    ] = Field(
        default=ALL_TENSORS,
        min_length=1,
        max_length=64,
        description="Names of the tensors that training changes, with `*` for any characters, such as "
        "`*.attention.query`; `trainingjob plan --tensors` lists all names. The others are frozen: they have no "
        "gradients and no optimizer state.",
        json_schema_extra=LIST_TYPE_SET,
        exclude_if=lambda patterns: patterns == ALL_TENSORS,  # an agent before 0.1 refuses a field it does not know
    )
    average: Average | None = Field(
        default=None,
        description="Moving average of the trained tensors, which evaluations, text samples and exports use in place "
        "of the tensors themselves. Unset: none is kept.",
        exclude_if=lambda average: average is None,  # as for `trainable`
    )
    adamw: AdamW | None = Field(
        default=None, description="Hyperparameters of `type: adamw`. Unset: the defaults of its fields."
    )
    lion: Lion | None = Field(
        default=None, description="Hyperparameters of `type: lion`. Unset: the defaults of its fields."
    )

    muon: Muon | None = Field(
        default=None,
        description="Hyperparameters of `type: muon`. Unset: the defaults of its fields.",
        exclude_if=lambda muon: muon is None,  # as for `trainable`
    )
    sgd: Sgd | None = Field(
        default=None,
        description="Hyperparameters of `type: sgd`. Unset: the defaults of its fields.",
        exclude_if=lambda sgd: sgd is None,
    )

    adafactor: Adafactor | None = Field(
        default=None,
        description="Hyperparameters of `type: adafactor`. Unset: the defaults of its fields.",
        exclude_if=lambda adafactor: adafactor is None,
    )

    cel_rules = alternatives("adamw", "adafactor", "lion", "muon", "sgd")

    @property
    def update_rms_limit(self) -> float | None:  # None: updates have no limit
        """Return the root mean square to which updates are limited. That of Adafactor is 1, unless the spec has one."""
        return 1.0 if self.clip_update_rms is None and self.type == "adafactor" else self.clip_update_rms

    def resolved(self) -> AdamW | Adafactor | Lion | Muon | Sgd:
        """Return the hyperparameters of the optimizer's type. Its defaults never change for a job that has none."""
        match self.type:
            case "adamw":
                return self.adamw or AdamW()
            case "adafactor":
                return self.adafactor or Adafactor()
            case "lion":
                return self.lion or Lion()
            case "muon":
                return self.muon or Muon()
        return self.sgd or Sgd()
