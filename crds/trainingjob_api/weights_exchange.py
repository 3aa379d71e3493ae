"""Requests of the command line to the trainer about weights in the format of Hugging Face, and the answers."""

from typing import Any, Literal

from trainingjob_api.base import Strict
from trainingjob_api.spec.job import TrainingJobSpec


class InspectRequest(Strict):
    """Compare the tensors of a folder with the model that its `config.json` describes."""

    kind: Literal["inspect"] = "inspect"
    path: str


class ExportRequest(Strict):
    """Export a checkpoint of a job."""

    kind: Literal["export"] = "export"
    spec: TrainingJobSpec
    source: str
    """The checkpoint folder of the job on this machine."""
    step: int | None
    """None: the newest that passes verification."""
    target: str
    dtype: Literal["float32", "bfloat16", "float16"]
    max_file_bytes: int


class WeightsReport(Strict):
    """A folder of published weights: its model, and how its tensors fit it."""

    model_type: str
    section: dict[str, Any]
    """The model section of a job's YAML."""
    num_parameters: int
    num_bytes: int
    matched: tuple[str, ...]
    """Tensors of the files that a job reads."""
    missing: tuple[str, ...]
    """Tensors that the files lack."""
    unused: tuple[str, ...]
    """Tensors of the files that a job does not read."""
    misfits: tuple[str, ...]
    """Texts about tensors of another shape or an unsupported format."""


class ExportProgress(Strict):
    """Numbers that are written, and all of them."""

    done: int
    total: int


class ExportReport(Strict):
    """A finished export."""

    step: int
    architecture: str
    num_files: int


class ExchangeAnswer(Strict):
    """One line of answers: exactly one of the fields is set."""

    report: WeightsReport | None = None
    progress: ExportProgress | None = None
    exported: ExportReport | None = None
    error: str = ""
