"""The progress in the status: steps, speed, saved steps, rollbacks and goodput."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Open, Text, Time
from trainingjob_api.world import Rollback

MAX_SCORE = 1e39
"""Larger than the largest float32."""
Score = Annotated[float, Field(ge=0, le=MAX_SCORE, allow_inf_nan=False)]


class EvaluationScores(Open):
    """Accuracy and compression of a model on held-out text. Each prediction counts by its loss weight."""

    accuracy: Score = Field(
        description="Share of the predictions whose target is the most likely token. With `objective.type: dpo`, share "
        "of the pairs whose chosen answer has the greater reward."
    )
    bits_per_byte: Score | None = Field(
        default=None,
        description="Bits of cross-entropy per byte of the predicted text. Unset: the trainer that tokenized the text "
        "did not count its bytes.",
    )


class ProgressStatus(Open):
    """How far training has come, and how fast it goes."""

    step: int = Field(description="Newest finished optimizer step.")
    of: int | None = Field(
        default=None,
        description="Optimizer step at which the job succeeds. Unset: it follows from `training.epochs`, and no host "
        "has counted the text yet.",
    )
    percent: float = Field(default=0.0, description="Finished share of all steps, in percent.")
    loss: float | None = Field(default=None, description="Mean loss per token of the newest step.")
    grad_norm: float | None = Field(default=None, description="Global norm of the newest gradient.")
    learning_rate: float | None = Field(default=None, description="Learning rate of the newest step.")
    tokens_per_second: float | None = Field(default=None, description="Tokens per second over all devices.")
    step_seconds: float | None = Field(default=None, description="Median seconds of the newest optimizer steps.")
    mfu: float | None = Field(
        default=None,
        description="Model FLOPs of the newest step, divided by the peak FLOPs of all devices. Unset: the rates of the "
        "accelerator or the FLOPs of the program are unknown.",
    )
    data_loading_share: float | None = Field(
        default=None,
        description="Share of the step time in which the slowest host loads a batch. Loading overlaps with the step "
        "before, so steps wait for data from about 1 on.",
    )
    eta_seconds: int | None = Field(default=None, description="Estimated seconds to the last step.")
    evaluations: dict[str, float] = Field(
        default={}, max_length=8, description="Newest evaluation loss by the evaluation's name."
    )
    scores: dict[str, EvaluationScores] = Field(
        default={}, max_length=8, description="Accuracy and bits per byte of the same evaluations, by the same names."
    )
    skipped: int = Field(
        default=0,
        description="Steps whose update was skipped: their loss was not finite or a spike, or their batch had no loss.",
    )
    skipped_lately: int = Field(
        default=0, description="Updates of the newest 100 steps of this world that were skipped or trained nothing."
    )
    snapshot: int | None = Field(
        default=None, description="Newest step that is complete in the memory of every host. Unset: none."
    )
    snapshot_seconds: float | None = Field(
        default=None, description="Seconds for which the newest snapshot blocked training on the slowest host."
    )
    save_seconds: float | None = Field(
        default=None, description="Seconds for which this world's newest save blocked training on the slowest host."
    )


class CheckpointStatus(Open):
    """The newest durable checkpoint."""

    step: int = Field(description="Newest step that is saved, hashed and committed.")
    time: Time = Field(description="Time at which the operator received the report of it.")
    tier: Literal["durable"] = Field(
        default="durable", description="Storage tier of the step: `durable` outlives pods and nodes."
    )


class FailingSaves(Open):
    """Consecutive failures of saves, or of copies or exports of checkpoints, while the job trains on."""

    since: Time = Field(description="Time at which the operator received the first failure.")
    step: int = Field(description="Newest step whose save failed.")
    message: Text = Field(default="", description="Reason of the failure, with the host.")


class BackupStatus(Open):
    """The newest copy of a checkpoint on the backup store."""

    step: int = Field(description="Newest step that is copied, hashed and committed.")
    time: Time = Field(description="Time at which the operator received the report of it.")


class ExportStatus(Open):
    """The newest export of a kept checkpoint."""

    step: int = Field(description="Newest step whose exported files are complete.")
    time: Time = Field(description="Time at which the operator received the report of it.")


class RollbackStatus(Rollback):
    """A rollback, and why."""

    time: Time = Field(description="Time at which training returned to the earlier step.")
    reason: Annotated[str, Field(max_length=64)] = Field(description="Cause in one CamelCase word.")
    message: Annotated[str, Field(max_length=256)] = Field(
        default="", description="Explanation of the cause for people."
    )


class Goodput(Open):
    """Where the time of the job's life went."""

    ratio: float = Field(
        default=0.0, description="Seconds of training as a share of all seconds since `startTime`, without suspensions."
    )
    seconds: dict[str, float] = Field(default={}, max_length=16, description="Seconds by activity.")
    current: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Present activity, to which the seconds from here on count."
    )
