"""Rules about the trackers that receive metrics."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.validation.rule import Rule

MLFLOW, TRACKIO = "spec.metrics.mlflow", "spec.metrics.trackio"


def check_credentials_of_mlflow(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`metrics.mlflow` must have `token`, or both `username` and `password`, or no credentials."""
    mlflow = spec.metrics.mlflow
    if mlflow is None:
        return
    if (mlflow.username is None) != (mlflow.password is None):
        absent, other = ("username", "password") if mlflow.username is None else ("password", "username")
        message = f"must be set with `{other}`. Add the reference to its Secret, or remove `{other}`."
        yield Problem(f"{MLFLOW}.{absent}", None, message)
    if mlflow.token is not None and (mlflow.username is not None or mlflow.password is not None):
        message = "must not be set with `username` or `password`: a request has one kind of credentials. Remove one."
        yield Problem(f"{MLFLOW}.token", None, message)


def check_server_of_trackio(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`metrics.trackio` must have either `space` or `serverUrl`."""
    trackio = spec.metrics.trackio
    if trackio is None or (trackio.space is None) != (trackio.server_url is None):
        return
    if trackio.space is None:
        yield Problem(TRACKIO, None, "must have `space` or `serverUrl`. Write for example `space: team/metrics`.")
    else:
        message = "must not be set with `serverUrl`: a run has one server. Remove one of the two."
        yield Problem(f"{TRACKIO}.space", trackio.space, message)


def warn_of_plain_credentials(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`http` sends the credentials of a tracker readable by anyone on the way."""
    mlflow, trackio = spec.metrics.mlflow, spec.metrics.trackio
    if mlflow and (mlflow.token or mlflow.password):
        yield from _warn_of_plain(f"{MLFLOW}.trackingUri", mlflow.tracking_uri)
    if trackio and trackio.server_url:
        yield from _warn_of_plain(f"{TRACKIO}.serverUrl", trackio.server_url)


def _warn_of_plain(path: str, address: str) -> Iterator[Problem]:
    if address.startswith("http://"):
        message = f"{address} should begin with `https`. The token or password is readable in the network."
        yield Problem(path, address, message, (address.replace("http://", "https://", 1),))


RULES = (
    Rule(("metrics.mlflow",), check_credentials_of_mlflow),
    Rule(("metrics.trackio",), check_server_of_trackio),
)
WARNINGS = (Rule(("metrics.mlflow", "metrics.trackio"), warn_of_plain_credentials),)
