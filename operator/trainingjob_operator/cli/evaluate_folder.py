"""`trainingjob evaluate`: the scores of a model on text, as a table or JSON."""

import json
import math
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from trainingjob_api.base import is_bucket
from trainingjob_api.formats import FORMATS, is_of_format
from trainingjob_api.spec.data import DEFAULT_FORMAT, TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.weights_exchange import EvaluateReport, EvaluateRequest, TextReport
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.errors import NoResultError, UsageError
from trainingjob_operator.cli.local.path_translation import move_paths
from trainingjob_operator.cli.local.workspace import choose_folders
from trainingjob_operator.cli.printing import align, echo
from trainingjob_operator.cli.trainer_child import absolute_location, require_trainer
from trainingjob_operator.cli.validate_command import require_trainer_job
from trainingjob_operator.cli.weights import answer_with_progress, require_folder
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.units import format_count, format_percent, pluralize

HEADER = ("text", "predictions", "loss", "perplexity", "accuracy", "bits per byte")
MAX_PERPLEXITY_LOSS = 700.0
"""Largest loss whose exponential is a number."""


class EvaluateOptions(NamedTuple):
    """The options of the command. Either `data` or `job` is given."""

    checkpoint: str
    """A folder of this machine, or a folder of a bucket."""
    data: tuple[Path, ...]
    job: str | None
    volumes: tuple[str, ...]
    """Folders that replace volumes of the job, such as `NAME=FOLDER`."""
    step: int | None
    tokenizer: Path | None
    sequence_length: int | None


def evaluate_folder(options: EvaluateOptions, catalog: Catalog, *, as_json: bool) -> None:
    """Print the scores of a folder's weights on each text.

    Raises:
        CommandError: the job is invalid, or the folder or a text cannot be used.
    """
    require_trainer("evaluate")
    request = EvaluateRequest(
        path=absolute_location(options.checkpoint),
        step=options.step,
        tokenizer=str(options.tokenizer.absolute()) if options.tokenizer else None,
        texts=tuple(_describe_text(number, path) for number, path in enumerate(options.data, start=1)),
        spec=_read_job(options.job, options, catalog) if options.job else None,
        sequence_length=options.sequence_length,
    )
    require_folder(request)
    report = _evaluate(request)
    if as_json:
        echo(json.dumps(_as_object(report), indent=2))
        return
    for line in align([HEADER, *map(_row, report.texts)], right=range(1, len(HEADER))):
        echo(line)
    origin = request.path if report.step is None else f"step {report.step:,} of {request.path}"
    count = sum(text.num_sequences for text in report.texts)
    echo(f"{pluralize(count, 'sequence')} of {report.sequence_length:,} tokens, {origin}", err=True)


def _read_job(file: str, options: EvaluateOptions, catalog: Catalog) -> TrainingJobSpec:
    """Return the spec of a file's job, which has evaluations, with the paths of this machine."""
    plan, _ = require_trainer_job(read_single_job(file), "evaluate", catalog)
    spec = plan.spec
    if not spec.evaluation:
        raise UsageError(f"--job: {file} has no `spec.evaluation`. Add one, or name the text with --data.")
    folders = choose_folders(spec.runtime.volumes, options.volumes)
    checkpoint_mounts = (
        {} if is_bucket(options.checkpoint) else find_checkpoint_volume(spec, Path(options.checkpoint).absolute())
    )
    mounts = checkpoint_mounts | {
        volume.mount_path: folders[volume.name] for volume in spec.runtime.volumes if volume.name in folders
    }
    return TrainingJobSpec.model_validate(move_paths(spec.model_dump(mode="json", by_alias=True), mounts))


def find_checkpoint_volume(spec: TrainingJobSpec, checkpoint: Path) -> dict[str, Path]:
    """Return the mount path of the volume with `checkpoint.uri`, and its folder here, as `checkpoint` shows it.

    There is none if the folder does not end as the path below the volume.
    """
    uri = PurePosixPath(spec.checkpoint.uri)
    mounts = [volume.mount_path for volume in spec.runtime.volumes if uri.is_relative_to(volume.mount_path)]
    if not mounts:
        return {}
    mount = max(mounts, key=len)
    relative_parts = uri.relative_to(mount).parts
    folder = Path(*checkpoint.parts[: len(checkpoint.parts) - len(relative_parts)])
    return {mount: folder} if folder.joinpath(*relative_parts) == checkpoint else {}


def _describe_text(number: int, path: Path) -> TextSource:
    """Return a text as a source of data."""
    if not path.exists():
        raise UsageError(f"--data: {path} must be a file or a folder.")
    kind = next((name for name in FORMATS if path.is_file() and is_of_format(path.name, name)), DEFAULT_FORMAT)
    return TextSource(name=f"data-{number}", path=str(path.absolute()), format=kind)


def _evaluate(request: EvaluateRequest) -> EvaluateReport:
    for answer in answer_with_progress(request, "evaluating"):
        if answer.evaluated:
            return answer.evaluated
    raise NoResultError("the trainer ended without an answer.")


def _row(text: TextReport) -> tuple[str, ...]:
    return (
        text.path,
        format_count(text.num_predictions),
        f"{text.loss:.4f}",
        f"{_perplexity(text):.4g}",
        format_percent(text.accuracy),
        "" if text.bits_per_byte is None else f"{text.bits_per_byte:.4f}",
    )


def _perplexity(text: TextReport) -> float:
    return math.exp(min(text.loss, MAX_PERPLEXITY_LOSS))


def _as_object(report: EvaluateReport) -> dict[str, object]:
    texts = [
        {
            "name": text.name,
            "path": text.path,
            "sequences": text.num_sequences,
            "predictions": text.num_predictions,
            "loss": text.loss,
            "perplexity": _perplexity(text),
            "accuracy": text.accuracy,
            "bitsPerByte": text.bits_per_byte,
        }
        for text in report.texts
    ]
    return {"step": report.step, "sequenceLength": report.sequence_length, "texts": texts}
