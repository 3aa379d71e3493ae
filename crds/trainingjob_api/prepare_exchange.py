"""Requests of the command line to the trainer to tokenize the text of a job, or to store a teacher's probabilities."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.data_report import DataReport, PreparationProgress
from trainingjob_api.spec.distillation import MAX_PER_TOKEN
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


class TeachRequest(PrepareRequest):
    """Store the probabilities of a job's teacher for the tokens of its training text, which are created first."""

    per_token: Annotated[int, Field(ge=1, le=MAX_PER_TOKEN)]
    rank: Annotated[int, Field(ge=0)] = 0
    """Number of this process among those that share the work."""
    count: Annotated[int, Field(ge=1)] = 1
    """Number of processes that share the work."""


class TeachAnswer(Strict):
    """One line of answers: the progress, or the error. The last line is complete, or has the error."""

    tokenizing: PreparationProgress | None = None
    """How much is tokenized so far."""
    done_sequences: int = 0
    """Sequences whose probabilities are stored."""
    total_sequences: int = 0
    """Sequences of the text. 0: they are not known yet."""
    is_complete: bool = False
    error: str = ""
    """Why the probabilities cannot be stored."""
