"""Requests of the command line to the trainer about weights: reports, exports, text and scores; and the answers."""

from typing import Any, Literal

from trainingjob_api.base import Strict
from trainingjob_api.spec.checkpoint import AdapterFormat
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec

DEFAULT_MAX_TOKENS = 64


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
    adapter: AdapterFormat = "merged"


class ModelRequest(Strict):
    """A model whose weights a folder holds."""

    path: str
    """A checkpoint folder of a job, or a folder in the format of Hugging Face."""
    step: int | None
    """None: the newest that passes verification."""
    tokenizer: str | None
    """Path of a tokenizer.json. None: the one in the folder."""


class SampleRequest(ModelRequest):
    """Continue a prompt with the weights of a folder."""

    kind: Literal["sample"] = "sample"
    prompt: str
    max_tokens: int | None
    """None: `DEFAULT_MAX_TOKENS`, or as many as the model has positions for."""
    temperature: float | None
    """None: the most likely token is taken."""
    seed: int


class EvaluateRequest(ModelRequest):
    """Score the weights of a folder on text."""

    kind: Literal["evaluate"] = "evaluate"
    texts: tuple[TextSource, ...]
    """Whole texts. Empty: those of the evaluations of `spec`."""
    spec: TrainingJobSpec | None
    """The job whose evaluations are run: their texts and lengths, its packing and objective."""
    sequence_length: int | None
    """None: that of `spec`, or that of the folder."""


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


class ExchangeProgress(Strict):
    """Numbers that are written or sequences that are scored, and all of them."""

    done: int
    total: int


class ExportReport(Strict):
    """A finished export."""

    step: int
    architecture: str
    num_files: int


class SampleReport(Strict):
    """A finished text."""

    step: int | None
    """None: the folder has no steps."""
    num_tokens: int
    is_ended: bool
    """Whether the model ended the text, not the limit of tokens."""


class TextReport(Strict):
    """Scores of one text, each prediction counted by its loss weight."""

    name: str
    path: str
    num_sequences: int
    num_predictions: float
    loss: float
    accuracy: float
    bits_per_byte: float | None
    """None: the text has no bytes."""


class EvaluateReport(Strict):
    """Scores of all texts."""

    step: int | None
    """None: the folder has no steps."""
    sequence_length: int
    texts: tuple[TextReport, ...]


class ExchangeAnswer(Strict):
    """One line of answers: exactly one of the fields is set."""

    report: WeightsReport | None = None
    progress: ExchangeProgress | None = None
    exported: ExportReport | None = None
    text: str = ""
    """The next part of a text."""
    sampled: SampleReport | None = None
    evaluated: EvaluateReport | None = None
    error: str = ""
