"""Metrics of objectives and models that a host reports with its progress, besides the loss."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Open

MAX_METRIC = 1e39
"""Larger than the largest float32."""

Metric = Annotated[float, Field(ge=-MAX_METRIC, le=MAX_METRIC, allow_inf_nan=False)]


class ObjectiveMetrics(Open):
    """Metrics of the newest measured step, as means over its predictions."""

    z_loss: Metric | None = Field(
        default=None,
        description="Loss of the log-partition of the logits per token. Unset: `objective.zLoss` is unset.",
    )
    chosen_reward: Metric | None = Field(
        default=None, description="Mean reward of the chosen answers. Unset: `objective.type` is not `dpo`."
    )
    rejected_reward: Metric | None = Field(default=None, description="Mean reward of the rejected answers, likewise.")
    reward_margin: Metric | None = Field(
        default=None, description="Mean difference of the rewards of chosen and rejected answers, likewise."
    )
    reward_accuracy: Metric | None = Field(
        default=None, description="Share of the pairs whose chosen answer has the greater reward, likewise."
    )
    cross_entropy: Metric | None = Field(
        default=None,
        description="Mean cross-entropy of the targets, a part of the loss. Unset: `objective.type` is not `distill`.",
    )
    teacher_divergence: Metric | None = Field(
        default=None, description="Mean divergence of the model from its teacher, the other part, likewise."
    )
    feature_loss: Metric | None = Field(
        default=None, description="Mean distance of the hidden states from those of the teacher, without its weight."
    )
    load_balance: Metric | None = Field(
        default=None,
        description="Load-balancing loss per layer: 1 if all experts get equally many tokens. Unset: no experts.",
    )
    dropped: Metric | None = Field(
        default=None, description="Share of the routed tokens beyond the expert capacity. Unset: no experts."
    )
