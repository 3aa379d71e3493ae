"""The metrics section."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, Secret, SecretVariable, Strict
from trainingjob_api.meta import Example, Pattern, Unit

ProjectName = Annotated[
    str, Pattern(r"^[A-Za-z0-9._-]+$", "a name: letters, digits, `-`, `_` and `.`"), Field(max_length=128)
]
Tag = Annotated[str, Field(min_length=1, max_length=64)]


class WandB(Strict):
    """Weights & Biases. An unreachable server costs points of plots, and never stops or delays training."""

    project: Annotated[ProjectName, Example("research")] = Field(
        description="Project of the run, which is created if it does not exist."
    )
    entity: Annotated[ProjectName | None, Example("team")] = Field(
        default=None, description="User or team that owns the project. Unset: the default of the API key."
    )
    name: Annotated[Annotated[str, Field(min_length=1, max_length=128)] | None, Example("baseline")] = Field(
        default=None, description="Display name of the run. Unset: the name of the job."
    )
    tags: Annotated[tuple[Tag, ...], Example(["7b"])] = Field(
        default=(), max_length=32, description="Tags of the run, to filter by.", json_schema_extra=LIST_TYPE_SET
    )
    api_key: Annotated[Secret, SecretVariable("WANDB_API_KEY")] = Field(
        description="API key. The pods get it as the variable `WANDB_API_KEY`."
    )


class Metrics(Strict):
    """Metrics that the trainer writes under `checkpoint.uri`/metrics, and sends to trackers."""

    every_steps: Annotated[int, Field(ge=1, le=1_000_000), Unit("optimizer steps"), Example(10)] = Field(
        default=10,
        description="Steps between two lines of `metrics.jsonl`, which process 0 writes.",
    )
    tensorboard: Annotated[bool, Example(True)] = Field(default=True, description="Writes TensorBoard event files too.")
    wandb: WandB | None = Field(
        default=None,
        description="Sends the metrics to Weights & Biases too. All restarts of the job continue one run.",
    )
