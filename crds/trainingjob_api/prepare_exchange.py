"""The request of the command line to the trainer to tokenize the text of a job, and the answers."""

from trainingjob_api.base import Strict
from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.spec.job import TrainingJobSpec


class PrepareRequest(Strict):
    """Tokenize the text of a job into a folder."""

    spec: TrainingJobSpec
    """The job, with the paths of this machine."""
    output: str
    """The folder that a job names as `checkpoint.uri`."""
    paths: dict[str, str]
    """The path of each source in the pods, by the source's place in the spec. It is part of the key of the tokens."""


class PrepareAnswer(Strict):
    """One line of answers: exactly one of the fields is set.

    Lines with the progress come first. The last line has the report, or the error.
    """

    progress: PreparationProgress | None = None
    """How much is tokenized so far."""
    report: DataReport | None = None
    """What was read, once all of it is tokenized."""
    error: str = ""
    """Why the text cannot be tokenized."""
