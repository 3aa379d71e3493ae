"""Scores of the weights of a folder on text, on the devices of this machine."""

import math
from collections.abc import Callable, Iterator
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
from jax.sharding import NamedSharding, PartitionSpec

from trainingjob_api.sharding import RULES
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.evaluation import ALL_BATCHES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.weights_exchange import (
    EvaluateReport,
    EvaluateRequest,
    ExchangeAnswer,
    ExchangeProgress,
    TextReport,
)
from trainingjob_trainer.data.dataset_writer import HostShare, create_dataset, plan_dataset
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.sources.hub_dataset import download_sources
from trainingjob_trainer.data.token_dataset import TokenDataset, open_dataset
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.params import matmul_precision
from trainingjob_trainer.objectives.scoring import Scorer, Scores, ScoreSums, add_sums
from trainingjob_trainer.parallel.mesh import one_replica
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import Batch
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.weights_exchange.text_source import TextSource as ModelSource
from trainingjob_trainer.weights_exchange.text_source import open_text_source

OPTION = "--data"
"""The option of the command line that names a text."""
BATCH_TOKENS, MAX_ROWS = 16_384, 8
"""Tokens and sequences that a device scores at once; the logits are in chunks."""


class _Text(NamedTuple):
    """A text, its tokens, and the number of sequences to score."""

    source: TextSource
    tokens: TokenDataset
    num_sequences: int


def evaluate_text(request: EvaluateRequest, send: Callable[[ExchangeAnswer], None]) -> None:
    """Score the weights on each text, and send the progress and the scores.

    Raises:
        ConfigError: no model section expresses the model.
        WeightsError: the folder, a text or the length of the sequences cannot be used.
        TrainingError: no step is intact, or the tokenizer cannot be used.
        ValueError: `model.json` cannot be read.
        OSError: a file cannot be read.
    """
    model = open_text_source(request)
    spec = _describe_job(request, model)
    if spec.sequences_per_example > 1:
        raise WeightsError("the objective of the job compares pairs of answers with a reference: score text by --data")
    length = spec.training.sequence_length
    positions = model.section.max_positions
    if positions is not None and length > positions:
        raise WeightsError(f"--sequence-length: {length:,} must be at most {positions:,}, the positions of the model")
    with TemporaryDirectory(prefix="trainingjob-evaluate-") as folder:
        texts = list(_tokenize(folder, request, spec))
        total, done = sum(text.num_sequences for text in texts), 0
        scorer, params, reports = _TextScorer(model, _choose_rows(request, spec)), model.load(), []
        for text in texts:
            sums: ScoreSums | None = None
            for count, batch_sums in scorer.score(params, text):
                sums = add_sums(sums, batch_sums)
                done += count
                send(ExchangeAnswer(progress=ExchangeProgress(done=done, total=total)))
            reports.append(_report(text, sums))
    report = EvaluateReport(step=model.step, sequence_length=length, texts=tuple(reports))
    send(ExchangeAnswer(evaluated=report))


def _describe_job(request: EvaluateRequest, model: ModelSource) -> TrainingJobSpec:
    """Return a job with the model of the folder, which reads the texts."""
    spec = request.spec or TrainingJobSpec.model_validate(
        {
            "slices": {"accelerator": "cpu", "topology": "1x1", "count": 1},
            "model": model.section.model_dump(),
            "data": {"train": [{"name": "none", "path": "/none"}]},
            "training": {"steps": 1, "globalBatchSize": 1, "sequenceLength": model.sequence_length},
            "optimizer": {"learningRate": 1e-3},
            "checkpoint": {"uri": "/none"},
        }
    )
    training = spec.training.model_copy(
        update={"sequence_length": request.sequence_length or spec.training.sequence_length}
    )
    return spec.model_copy(update={"model": model.section, "tokenizer": model.tokenizer, "training": training})


def _tokenize(folder: str, request: EvaluateRequest, spec: TrainingJobSpec) -> Iterator[_Text]:
    """Yield each text with its tokens, which are written to a folder.

    Raises:
        WeightsError: a text cannot be used.
    """
    store, length = open_store(folder), spec.training.sequence_length
    for place, source in enumerate(request.texts or spec.evaluation):
        field = OPTION if request.texts else f"spec.evaluation[{place}]"
        try:
            sources = download_sources([(field, source)], store)
            made = create_dataset(plan_dataset(store, sources, spec), HostShare())
        except TrainingError as error:
            raise WeightsError(_describe_error(error, source)) from error
        tokens = open_dataset(store, made.folder, length)
        limit = tokens.num_sequences
        if not request.texts and (batches := spec.evaluation[place].num_batches) != ALL_BATCHES:
            limit = min(limit, int(batches) * _count_held_out(spec))
        yield _Text(sources[0][1], tokens, limit)


def _count_held_out(spec: TrainingJobSpec) -> int:
    """Return the sequences of a held-out batch of a job: its largest batch, or the share of a replica."""
    return spec.training.largest_batch // (spec.slices.max_slices if spec.parallelism.replicas else 1)


def _describe_error(error: TrainingError, source: TextSource) -> str:
    """Return the message about a text or its tokenizer, with the option or the field to change."""
    if not error.path.startswith(OPTION):
        return f"{error.path}: {error.value} {error}"
    message, is_nearest, _ = str(error).partition(" Nearest legal value")  # of a field that the command has not
    advice = " Name the file itself, or a folder with such files." if is_nearest else ""
    return f"{OPTION}: {source.path}: {message}{advice}"


def _choose_rows(request: EvaluateRequest, spec: TrainingJobSpec) -> int:
    """Return the sequences that a device scores at once; for evaluations of a job, at most what any of them allows."""
    limits = () if request.texts else [evaluation.max_per_device_batch for evaluation in spec.evaluation]
    rows = max(min(BATCH_TOKENS // spec.training.sequence_length, MAX_ROWS), 1)
    return min([rows, *(limit for limit in limits if limit is not None)])


class _TextScorer:
    """Scores sequences in batches of a fixed size, for which it compiles one program."""

    def __init__(self, model: ModelSource, rows: int) -> None:
        layout = one_replica(model.mesh.size, rows)
        self._size = rows * model.mesh.size
        sharding = NamedSharding(model.mesh, PartitionSpec(None, None, RULES["batch"]))
        self._batches = BatchLoader(layout, sharding, self._size)
        self._run: Any = jax.jit(partial(_compute, Scorer(model.model, model.mesh), model))

    def score(self, params: Params, text: _Text) -> Iterator[tuple[int, ScoreSums]]:
        """Yield the number of sequences of each batch, and the sums of its scores."""
        for number in range(math.ceil(text.num_sequences / self._size)):
            batch = self._batches.held_out_batch(text.tokens, number, text.num_sequences)
            yield min(self._size, text.num_sequences - number * self._size), self._run(params, batch)


def _compute(scorer: Scorer, model: ModelSource, params: Params, batch: Batch) -> ScoreSums:
    with matmul_precision(model.model.precision):
        return scorer.compute(params, batch)


def _report(text: _Text, sums: ScoreSums | None) -> TextReport:
    """Return the scores of a text.

    Raises:
        WeightsError: no prediction of it counts, or the loss is not finite.
    """
    name = text.source.path or ""
    if sums is None or sums.weight == 0:
        raise WeightsError(f"{name} has no prediction that counts: all of its tokens have weight 0")
    scores = Scores.from_sums(sums)
    if not math.isfinite(scores.loss):
        raise WeightsError(f"the loss on {name} is {scores.loss}: the weights or their number format overflow")
    return TextReport(
        name=text.source.name,
        path=name,
        num_sequences=text.num_sequences,
        num_predictions=float(sums.weight),
        **scores.by_name(),
    )
