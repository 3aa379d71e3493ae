"""The metrics section."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import LIST_TYPE_SET, LabelKey, Secret, SecretVariable, Strict
from trainingjob_api.meta import Example, Pattern, Unit, cel_rule

ProjectName = Annotated[
    str, Pattern(r"^[A-Za-z0-9._-]+$", "a name: letters, digits, `-`, `_` and `.`"), Field(max_length=128)
]
Tag = Annotated[str, Field(min_length=1, max_length=64)]
RunName = Annotated[str, Field(min_length=1, max_length=128)]
TagValue = Annotated[str, Field(min_length=1, max_length=256)]
ServerUrl = Annotated[
    str,
    Pattern(
        r"^https?://[A-Za-z0-9.-]+(:[0-9]{1,5})?(/[A-Za-z0-9_.~-]+)*/?$",
        "an address such as https://mlflow.example.com",
        lambda text: text if "://" in text else f"https://{text}",
    ),
    Field(max_length=1024),
]
"""The address of a server, without a user, a password or a query: credentials come from Secrets."""
Space = Annotated[
    str,
    Pattern(
        r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$",
        "a Space such as team/metrics",
        lambda text: text.removeprefix("https://huggingface.co/spaces/").strip("/"),
    ),
    Field(max_length=193),
]
"""The owner and the name of a Space."""

_SPACE_HOST = str.maketrans("/_.", "---")


class WandB(Strict):
    """Weights & Biases. An unreachable server costs points of plots, and never stops or delays training."""

    project: Annotated[ProjectName, Example("research")] = Field(
        description="Project of the run, which is created if it does not exist."
    )
    entity: Annotated[ProjectName | None, Example("team")] = Field(
        default=None, description="User or team that owns the project. Unset: the default of the API key."
    )
    name: Annotated[RunName | None, Example("baseline")] = Field(
        default=None, description="Display name of the run. Unset: the name of the job."
    )
    tags: Annotated[tuple[Tag, ...], Example(["7b"])] = Field(
        default=(), max_length=32, description="Tags of the run, to filter by.", json_schema_extra=LIST_TYPE_SET
    )
    api_key: Annotated[Secret, SecretVariable("WANDB_API_KEY")] = Field(
        description="API key. The pods get it as the variable `WANDB_API_KEY`."
    )


class MLflow(Strict):
    """MLflow. An unreachable server costs points of plots, and never stops or delays training."""

    tracking_uri: Annotated[ServerUrl, Example("https://mlflow.example.com")] = Field(
        description="Address of the tracking server."
    )
    experiment: Annotated[Annotated[str, Field(min_length=1, max_length=256)], Example("research")] = Field(
        description="Name of the experiment, which is created if it does not exist."
    )
    run_name: Annotated[RunName | None, Example("baseline")] = Field(
        default=None, description="Display name of the run. Unset: the name of the job."
    )
    tags: Annotated[dict[LabelKey, TagValue], Example({"size": "7b"})] = Field(
        default={}, max_length=32, description="Tags of the run, to filter by."
    )
    token: Annotated[Secret | None, SecretVariable("MLFLOW_TRACKING_TOKEN")] = Field(
        default=None,
        description="Access token of the server. The pods get it as the variable `MLFLOW_TRACKING_TOKEN`.",
    )
    username: Annotated[Secret | None, SecretVariable("MLFLOW_TRACKING_USERNAME")] = Field(
        default=None,
        description="User name on the server, with `password`. The pods get it as the variable "
        "`MLFLOW_TRACKING_USERNAME`.",
    )
    password: Annotated[Secret | None, SecretVariable("MLFLOW_TRACKING_PASSWORD")] = Field(
        default=None,
        description="Password of the user. The pods get it as the variable `MLFLOW_TRACKING_PASSWORD`.",
    )

    cel_rules = (
        cel_rule(
            "has(self.username) == has(self.password)", "must have both `username` and `password`, or neither of them."
        ),
        cel_rule("!has(self.token) || !has(self.username)", "must not be set with `username`.", "token"),
    )


class Trackio(Strict):
    """Trackio. An unreachable server costs points of plots, and never stops or delays training."""

    project: Annotated[ProjectName, Example("research")] = Field(
        description="Project of the run, which is created if it does not exist."
    )
    name: Annotated[RunName | None, Example("baseline")] = Field(
        default=None, description="Display name of the run. Unset: the name of the job."
    )
    space: Annotated[Space | None, Example("team/metrics")] = Field(
        default=None, description="Existing Trackio Space of the Hugging Face hub. Unset: `serverUrl` must be set."
    )
    server_url: Annotated[ServerUrl | None, Example("https://trackio.example.com")] = Field(
        default=None, description="Address of a Trackio server outside the hub. Unset: `space` must be set."
    )
    token: Annotated[Secret, SecretVariable("TRACKIO_WRITE_TOKEN")] = Field(
        description="Hugging Face token that can write to the Space, or write token of the server. The pods get it as "
        "the variable `TRACKIO_WRITE_TOKEN`."
    )

    cel_rules = (cel_rule("has(self.space) != has(self.serverUrl)", "must have either `space` or `serverUrl`."),)

    @property
    def address(self) -> str:
        """The address of the server, without a slash at its end."""
        if self.space is None:
            return (self.server_url or "").rstrip("/")
        return f"https://{self.space.lower().translate(_SPACE_HOST)}.hf.space"


class Statistics(Strict):
    """Norms of each trained tensor, its gradient and its update. Steps without them run the program without them."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(100)] = Field(
        default=100, description="Steps between two steps whose norms are computed."
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
    mlflow: MLflow | None = Field(
        default=None,
        description="Sends the metrics to MLflow too. All restarts of the job continue one run.",
        exclude_if=lambda mlflow: mlflow is None,  # an agent before 0.1 refuses a field that it does not know
    )
    trackio: Trackio | None = Field(
        default=None,
        description="Sends the metrics to Trackio too. All restarts of the job continue one run.",
        exclude_if=lambda trackio: trackio is None,  # as for `mlflow`
    )
    statistics: Statistics | None = Field(
        default=None,
        description="Norms by tensor, in `metrics.jsonl` and all trackers. Unset: none; they need a second compiled "
        "step.",
        exclude_if=lambda statistics: statistics is None,  # as for `mlflow`
    )
