"""`trainingjob prepare`: the tokens of a job in a folder, so that the job starts without tokenizing.

The trainer tokenizes in a separate process, exactly as in a pod.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from trainingjob_api.base import is_bucket
from trainingjob_api.data_report import DataReport
from trainingjob_api.prepare_exchange import PrepareAnswer, PrepareRequest
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.documents import read_single_job
from trainingjob_operator.cli.errors import NoResultError, UsageError
from trainingjob_operator.cli.local.path_translation import Mounts, move_path, move_paths
from trainingjob_operator.cli.local.workspace import choose_folders
from trainingjob_operator.cli.printing import echo
from trainingjob_operator.cli.report import describe_data
from trainingjob_operator.cli.trainer_child import TrainerChild, absolute_location, require_trainer
from trainingjob_operator.cli.validate_command import require_trainer_job, warning_lines
from trainingjob_operator.core.catalog import Catalog
from trainingjob_operator.core.units import format_count

PROGRAM = ("-P", "-m", "trainingjob_trainer.prepare")
"""Python arguments that run the trainer's part."""
MISSING = "is not there on this host"
"""Part of the trainer's message about a path that does not exist."""
SECTIONS = ("data", "evaluation", "tokenizer")
"""Sections of a spec with paths that the preparation reads."""


class PrepareOptions(NamedTuple):
    """The options of the command."""

    output: str | None
    """A folder of this machine, or a folder of a bucket. None: the folder behind `checkpoint.uri`."""
    volumes: Sequence[str] = ()
    """Each is `NAME=FOLDER`."""


def prepare_file(file: str, options: PrepareOptions, catalog: Catalog) -> None:
    """Tokenize the text of a file's TrainingJob, and print what was read.

    Raises:
        CommandError: the job is invalid, the text cannot be used, or the folder cannot be written.
    """
    require_trainer("prepare")
    plan, warnings = require_trainer_job(read_single_job(file), "prepare", catalog)
    for line in warning_lines(warnings):
        echo(line, err=True)
    request = make_request(plan.spec, options)
    report = _prepare(request)
    for line in describe_data(report):
        echo(line)
    echo(f"tokens in {request.output}/data, for jobs whose `spec.checkpoint.uri` is this folder", err=True)


def make_request(spec: TrainingJobSpec, options: PrepareOptions, sections: Sequence[str] = SECTIONS) -> PrepareRequest:
    """Return the request for the trainer, with the paths of this machine in some sections.

    Raises:
        CommandError: a volume or the output cannot be used.
    """
    folders = choose_folders(spec.runtime.volumes, options.volumes)
    mounts = {volume.mount_path: folders[volume.name] for volume in spec.runtime.volumes if volume.name in folders}
    raw = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    moved_sections = {name: move_paths(raw[name], mounts) for name in sections if name in raw}
    try:
        local = TrainingJobSpec.model_validate(raw | moved_sections)
    except ValidationError as error:  # the checks of `choose_folders` leave few characters
        problem = error.errors(include_url=False)[0]
        raise UsageError(f"spec.{'.'.join(map(str, problem['loc']))}: {problem['msg']} on this machine.") from error
    return PrepareRequest(
        spec=local, output=_choose_output(spec, options.output, mounts), paths=_list_paths(spec, local)
    )


def _choose_output(spec: TrainingJobSpec, output: str | None, mounts: Mounts) -> str:
    if output is not None:
        return absolute_location(output)
    uri = spec.checkpoint.uri
    location = move_path(uri, mounts)
    if location == uri and not is_bucket(uri) and not Path(uri).parent.is_dir():
        raise UsageError(
            f"spec.checkpoint.uri: {uri} is not on this machine. Name the folder of its volume with --volume "
            "NAME=FOLDER, or the folder for the tokens with --output FOLDER."
        )
    return location


def _list_paths(spec: TrainingJobSpec, local: TrainingJobSpec) -> dict[str, str]:
    """Return the paths in the pods of the sources whose paths differ on this machine, by the field of the source."""
    sources = {f"spec.data.train[{index}]": source.path for index, source in enumerate(spec.data.train)}
    sources |= {f"spec.evaluation[{index}]": source.path for index, source in enumerate(spec.evaluation)}
    local_paths = [source.path for source in (*local.data.train, *local.evaluation)]
    return {
        field: path
        for (field, path), local_path in zip(sources.items(), local_paths, strict=True)
        if path and path != local_path
    }


def _prepare(request: PrepareRequest) -> DataReport:
    """Return the trainer's report, and show its progress on a terminal.

    Raises:
        CommandError: the trainer reports an error, or its answer cannot be read.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[tokens]}"),
        TimeRemainingColumn(),
    )
    console = SafeConsole(stderr=True)
    with (
        TrainerChild(PROGRAM, "trainer") as trainer,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar,
    ):
        task = bar.add_task("tokenizing", total=None, tokens="")
        for line in trainer.answer(request.model_dump_json()):
            answer = trainer.parse(PrepareAnswer, line)
            if answer.error:
                raise NoResultError(answer.error + _volume_hint(request, answer.error))
            if answer.report:
                return answer.report
            if progress := answer.progress:
                bar.update(task, completed=progress.done_bytes, total=progress.total_bytes)
                bar.update(task, tokens=f"{format_count(progress.tokens)} tokens")
    raise NoResultError("the trainer ended without an answer.")


def _volume_hint(request: PrepareRequest, error: str) -> str:
    """Return how to name folders of this machine, if a file of a volume is missing and no folder is named."""
    names = [volume.name for volume in request.spec.runtime.volumes]
    if request.paths or MISSING not in error or not names:
        return ""
    return f" On this machine, --volume {names[0]}=FOLDER names the folder of a volume."
