"""Rules about weights from and for other jobs and programs: the source of initial parameters, and the export."""

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from trainingjob_api.base import is_bucket
from trainingjob_api.huggingface.peft import bind_adapters
from trainingjob_api.huggingface.registry import find_nearest, write_config
from trainingjob_api.network.adapt import adapt
from trainingjob_api.network.resolve import resolve
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.lora import Lora
from trainingjob_api.spec.model import Model
from trainingjob_operator.core.planner.problem_messages import join_words, must_be_direct, quote_field
from trainingjob_operator.core.validation.reserved_folders import is_below
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_storage import (
    MOUNTS,
    check_bucket,
    check_own_folder,
    folders_overlap,
    writable_mounts,
)

SOURCE = "spec.checkpoint.initializeFrom"
EXPORT = "spec.checkpoint.export.huggingFace"
MAX_FIELDS = 3
"""Maximum number of fields of the nearest architecture that a message names."""


def check_initialize_from(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.initializeFrom` must have one source: `uri`, which `step` requires, or `huggingFace`."""
    source = spec.checkpoint.initialize_from
    if source is None:
        return
    if (source.uri is None) == (source.hugging_face is None):
        found = "both" if source.uri else "none"
        yield Problem(SOURCE, None, f"must have exactly one of `uri` and `huggingFace`, but has {found}.")
    elif source.step is not None and source.uri is None:
        message = "must not be set without `uri`. Published weights have no steps. Remove it."
        yield Problem(f"{SOURCE}.step", source.step, message)


def check_published_weights(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Published weights and adapters must have `path`, or `repository` with its `revision` and `token`."""
    source = spec.checkpoint.initialize_from
    if source and source.hugging_face:
        published = source.hugging_face
        options = {"revision": published.revision, "token": "***" if published.token else None}
        yield from _check_folder_or_repository("huggingFace", published.path, published.repository, options)
    if source and source.adapter:
        adapter = source.adapter
        options = {"revision": adapter.revision}
        yield from _check_folder_or_repository("adapter", adapter.path, adapter.repository, options)


def _check_folder_or_repository(
    name: str, path: str | None, repository: str | None, options: Mapping[str, str | None]
) -> Iterator[Problem]:
    section_path = f"{SOURCE}.{name}"
    if (path is None) == (repository is None):
        found = "both" if path else "none"
        yield Problem(section_path, None, f"must have exactly one of `path` and `repository`, but has {found}.")
    elif repository is None:
        for option, value in options.items():
            if value is not None:
                message = "must not be set without `repository`. A folder has neither revisions nor tokens. Remove it."
                yield Problem(f"{section_path}.{option}", None if option == "token" else value, message)


def check_source_folders(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The source of initial parameters must be in a bucket or on a volume, outside the job's own checkpoint folder."""
    source = spec.checkpoint.initialize_from
    if source is None:
        return
    published = source.hugging_face
    folders = {
        f"{SOURCE}.uri": source.uri,
        f"{SOURCE}.huggingFace.path": published.path if published else None,
        f"{SOURCE}.adapter.path": source.adapter.path if source.adapter else None,
    }
    for path, folder in folders.items():
        if folder is not None:
            yield from check_source_folder(spec, path, folder)


def check_source_folder(spec: TrainingJobSpec, path: str, folder: str) -> Iterator[Problem]:
    """Yield the problems of a folder that a job reads: it must be in a bucket or on a volume, apart from its own."""
    uri, checkpoint_uri = PurePosixPath(folder), spec.checkpoint.uri
    problems = tuple(check_bucket(path, folder)) if is_bucket(folder) else ()
    if problems:
        yield from problems
    elif ".." in uri.parts:
        yield Problem(path, str(uri), must_be_direct(uri))
    elif not is_bucket(folder) and not any(is_below(folder, volume.mount_path) for volume in spec.runtime.volumes):
        message = f"{uri} must be on a volume of `spec.runtime.volumes`. Mount the volume that contains it."
        yield Problem(path, str(uri), message)
    elif folders_overlap(uri, PurePosixPath(checkpoint_uri)):
        message = (
            f"{folder} must not overlap {quote_field('spec.checkpoint.uri', checkpoint_uri)}. A job resumes from its "
            "own checkpoints without this field."
        )
        yield Problem(path, folder, message)


def check_export_folder(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.export.huggingFace.uri` must be a separate folder in a bucket, or on a writable volume."""
    if spec.checkpoint.export is None:
        return
    export_uri, path = spec.checkpoint.export.hugging_face.uri, f"{EXPORT}.uri"
    uri = PurePosixPath(export_uri)
    nearest = tuple(f"{mount.rstrip('/')}/{uri.name or 'exported'}" for mount in writable_mounts(spec))
    for field, folder in _list_other_folders(spec):
        if ".." not in uri.parts and folders_overlap(uri, PurePosixPath(folder)):
            message = f"{export_uri} must not overlap {quote_field(field, folder)}. Write a separate folder."
            yield Problem(path, export_uri, message, (f"{folder.rstrip('/')}-exported",))
            return
    if is_bucket(export_uri):
        yield from check_bucket(path, export_uri)
    else:
        yield from check_own_folder(spec, path, uri, "exported weights", nearest)


def _list_other_folders(spec: TrainingJobSpec) -> Iterator[tuple[str, str]]:
    """Yield the fields and values of folders that an export must leave alone."""
    checkpoint = spec.checkpoint
    yield "spec.checkpoint.uri", checkpoint.uri
    if checkpoint.backup:
        yield "spec.checkpoint.backup.uri", checkpoint.backup.uri
    source = checkpoint.initialize_from
    if source and source.uri:
        yield f"{SOURCE}.uri", source.uri
    if source and source.hugging_face and source.hugging_face.path:
        yield f"{SOURCE}.huggingFace.path", source.hugging_face.path
    if source and source.adapter and source.adapter.path:
        yield f"{SOURCE}.adapter.path", source.adapter.path


def check_export_model(spec: TrainingJobSpec) -> Iterator[Problem]:
    """An export requires a `model` that a supported architecture of `transformers` computes."""
    if spec.checkpoint.export is None or write_config(spec.model):
        return
    family, differences = find_nearest(spec.model)
    fields = [
        f"{path} {json.dumps(family_value)} instead of {json.dumps(model_value)}"
        for path, (model_value, family_value) in differences.items()
    ]
    message = (
        "must not be set: no supported architecture of transformers computes `spec.model`. Nearest: "
        f"{family.architecture}, which has {join_words(fields[:MAX_FIELDS])}. Change the model, or remove the export."
    )
    yield Problem(EXPORT, None, message)


def check_adapters(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`initializeFrom.adapter` and `export.huggingFace.adapter` require `lora`, and files with a place for adapters."""
    source, export = spec.checkpoint.initialize_from, spec.checkpoint.export
    fields = {
        f"{SOURCE}.adapter": source.adapter.name if source and source.adapter else None,
        f"{EXPORT}.adapter": export.hugging_face.adapter if export else None,
    }
    for path, value in fields.items():
        if value is not None and spec.lora is None:
            yield Problem(path, value, "must not be set without `spec.lora`. Set it, or remove this field.")
        elif spec.lora and value is not None and value != "merged":
            yield from _check_adapter_format(spec.model, spec.lora, path, value)


def _check_adapter_format(model: Model, lora: Lora, path: str, value: str) -> Iterator[Problem]:
    """Check that PEFT has a place for each adapter."""
    found = write_config(model)
    if found is None:
        message = "must not be set: no architecture of PEFT computes `spec.model`. Remove the field."
        yield Problem(path, value, message)
        return
    unmapped = bind_adapters(found[0], adapt(resolve(model), lora)).unmapped
    if unmapped:
        message = (
            f"{value} must not be set: in {found[0].architecture}, a matrix is shared by adapters of "
            f"{join_words(unmapped)}. Choose other `spec.lora.targets`."
        )
        yield Problem(path, value, message, ("merged",) if path.startswith(EXPORT) else ())


RULES = (
    Rule(("checkpoint.initializeFrom",), check_initialize_from),
    Rule(("checkpoint.initializeFrom",), check_published_weights),
    Rule(("checkpoint.initializeFrom", "checkpoint.uri", MOUNTS), check_source_folders),
    Rule(
        ("checkpoint.export", "checkpoint.uri", "checkpoint.backup", "checkpoint.initializeFrom", MOUNTS),
        check_export_folder,
    ),
    Rule(("checkpoint.export", "model"), check_export_model),
    Rule(("checkpoint.export", "checkpoint.initializeFrom", "model", "lora"), check_adapters),
)
