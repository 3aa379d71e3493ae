"""Rules about text: training data, held-out evaluation data, and the tokenizer."""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from trainingjob_api.base import MAX_SHORT_NAME
from trainingjob_api.formats import find_records, find_unsupported, without_compression
from trainingjob_api.globs import excludes_everything, find_pattern_problem
from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.names import unused_name
from trainingjob_operator.core.validation.reserved_folders import is_below
from trainingjob_operator.core.validation.rule import Rule

SECTIONS = ("data.train", "evaluation")


def check_tokenizer(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A tokenizer file goes with the type that reads it."""
    tokenizer = spec.tokenizer
    if tokenizer.type == "tokenizers":
        if tokenizer.path is None:
            message = "is missing: write the absolute path of a tokenizer.json file in the pod."
            yield Problem("spec.tokenizer.path", None, message)
        return
    for field, value in (("path", tokenizer.path), ("endOfDocument", tokenizer.end_of_document)):
        if value is not None:
            message = "only goes with type: tokenizers; the byte tokenizer has no file and ends documents itself."
            nearest = ("spec.tokenizer.type: tokenizers",) if tokenizer.path else ()
            yield Problem(f"spec.tokenizer.{field}", value, message, nearest)


def check_tokenizer_path(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The tokenizer is named by where it is."""
    path = spec.tokenizer.path
    if path is not None and ".." in PurePosixPath(path).parts:
        yield Problem("spec.tokenizer.path", path, f"{path} steps upwards: name the file itself.")


def check_source_names(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Names tell sources apart in messages and metrics."""
    for section, sources in _sources(spec):
        names = [source.name for source in sources]
        taken = set(names)
        for number, name in enumerate(names):
            if name in names[:number]:
                message = f"{name} is the name of another item of the list."
                free = unused_name(name, taken, MAX_SHORT_NAME)
                taken.add(free)
                yield Problem(f"spec.{section}[{number}].name", name, message, (free,))


def check_data_paths(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Sources stay below the folders that they name."""
    for section, sources in _sources(spec):
        for number, source in enumerate(sources):
            at = f"spec.{section}[{number}]"
            if ".." in PurePosixPath(source.path.removeprefix("python:")).parts:
                yield Problem(f"{at}.path", source.path, f"{source.path} steps upwards: name the folder itself.")
            elif source.path.startswith("python:/"):
                message = f"{source.path} is not a folder of the standard library: write it without the first slash."
                yield Problem(f"{at}.path", source.path, message, (f'"python:{source.path[7:].strip("/")}"',))


def check_patterns(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Patterns are globs that the hosts can search with, and match files that they can read."""
    for section, sources in _sources(spec):
        for number, source in enumerate(sources):
            at = f"spec.{section}[{number}]"
            yield from _check_pattern(f"{at}.pattern", source.glob)
            for place, exclude in enumerate(source.exclude):
                yield from _check_exclude(f"{at}.exclude[{place}]", exclude, source.glob)


def _check_pattern(at: str, pattern: str) -> Iterator[Problem]:
    if leaving := _describe_outside_pattern(pattern):
        yield Problem(at, pattern, leaving)
    elif fault := find_pattern_problem(pattern):
        nearest = tuple(
            _quote(nearest_pattern) for nearest_pattern in fault.nearest if not find_unsupported(nearest_pattern)
        )
        yield Problem(at, pattern, f"{format_value(pattern)} {fault.message}", nearest)
    elif kind := find_unsupported(pattern):
        plain = without_compression(pattern)
        fix = "Decompress the files" if plain else "Convert the files to UTF-8 text"
        message = f"{format_value(pattern)} matches {kind} files, which are not supported. {fix}, one document a file."
        yield Problem(at, pattern, message, (_quote(plain),) if plain else ())


def _check_exclude(at: str, exclude: str, pattern: str) -> Iterator[Problem]:
    if leaving := _describe_outside_pattern(exclude):
        yield Problem(at, exclude, leaving)
    elif fault := find_pattern_problem(exclude, folders=True):
        nearest = (_quote(one) for one in fault.nearest if not excludes_everything(pattern, one))
        yield Problem(at, exclude, f"{format_value(exclude)} {fault.message}", tuple(nearest))
    elif excludes_everything(pattern, exclude):
        yield Problem(
            at, exclude, f"{format_value(exclude)} leaves out every file that the pattern matches: remove it."
        )


def _quote(glob: str) -> str:
    """Return a pattern as a quoted YAML string, because an unquoted `*` begins an alias."""
    return json.dumps(glob, ensure_ascii=False)


def _describe_outside_pattern(glob: str) -> str:
    if glob.startswith("/") or ".." in PurePosixPath(glob).parts:
        return f"{glob} leaves the folder of the source: patterns are relative to `path`."
    return ""


def check_formats(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A path that names a file names one that the hosts can read."""
    for section, sources in _sources(spec):
        for number, source in enumerate(sources):
            if kind := find_unsupported(source.path):
                plain = without_compression(source.path)
                way_out = "Decompress it" if plain else "Convert it to UTF-8 text"
                message = (
                    f"{source.path} is {kind} by its name, which is not supported. {way_out}. A folder of this name "
                    "must be written with `/` at its end."
                )
                nearest = (_quote(plain),) if plain else ()
                yield Problem(f"spec.{section}[{number}].path", source.path, message, nearest)


def warn_of_record_files(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Files of records are trained on as they are written."""
    for section, sources in _sources(spec):
        for number, source in enumerate(sources):
            at = f"spec.{section}[{number}]"
            for field, value in (("path", source.path), ("pattern", source.glob)):
                kind = find_records(value) if source.type == "text" else ""
                if kind:
                    is_json = kind.startswith("JSON")
                    remedy = (
                        "set `type: jsonl`" if is_json else "convert the records to JSON Lines and set `type: jsonl`"
                    )
                    message = (
                        f"{format_value(value)} names {kind} files: each file is one document and is read as it is, "
                        f"with keys, quotes and separators. To train on one field of each record, {remedy}."
                    )
                    yield Problem(f"{at}.{field}", value, message)


def check_columns(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Only a record has fields to choose from."""
    for section, sources in _sources(spec):
        for number, source in enumerate(sources):
            if source.type == "text" and source.column is not None:
                message = (
                    "must not be set with `type: text`: a text file has no fields. Remove it, or set `type: jsonl`."
                )
                yield Problem(f"spec.{section}[{number}].column", source.column, message)


def warn_of_missing_separator(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Without a separator the end of one document runs into the next."""
    if spec.tokenizer.type == "tokenizers" and spec.tokenizer.end_of_document is None:
        message = (
            "is not set: documents follow each other without a separator, and the model is trained across their "
            "borders. Name the token of the tokenizer that ends a document, often `</s>` or `<|endoftext|>`."
        )
        yield Problem("spec.tokenizer.endOfDocument", None, message)


def warn_of_unreached_evaluation(spec: TrainingJobSpec) -> Iterator[Problem]:
    """An evaluation that comes after the last step never runs."""
    for number, evaluation in enumerate(spec.evaluation):
        if evaluation.every_steps > spec.training.steps:
            message = f"{evaluation.every_steps} is above spec.training.steps, {spec.training.steps}: it never runs."
            path = f"spec.evaluation[{number}].everySteps"
            yield Problem(path, evaluation.every_steps, message, (str(spec.training.steps),))


def warn_of_evaluation_on_training_data(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Text that is trained on is not held out."""
    for number, held_out in enumerate(spec.evaluation):
        for source in spec.data.train:
            if (held_out.path, held_out.glob) == (source.path, source.glob):
                message = f"{held_out.path} is trained on as {source.name}: the loss on it says little."
                yield Problem(f"spec.evaluation[{number}].path", held_out.path, message)


def warn_of_repeated_sources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A source that stands twice is trained on twice as often as the others."""
    seen: dict[tuple[PurePosixPath, str], str] = {}
    for number, source in enumerate(spec.data.train):
        first = seen.setdefault((PurePosixPath(source.path), source.glob), source.name)
        if first != source.name:
            message = f"{source.path} is read as {first} already: its text is trained on twice as often."
            yield Problem(f"spec.data.train[{number}].path", source.path, message)


def warn_of_unmounted_files(spec: TrainingJobSpec) -> Iterator[Problem]:
    """What no volume holds must be in the image."""
    paths = {
        f"spec.{section}[{number}].path": source.path
        for section, sources in _sources(spec)
        for number, source in enumerate(sources)
    }
    mounts = [volume.mount_path for volume in spec.runtime.volumes]
    for at, path in (*paths.items(), ("spec.tokenizer.path", spec.tokenizer.path)):
        if path and path.startswith("/") and not any(is_below(path, mount) for mount in mounts):
            yield Problem(at, path, f"{path} is on none of spec.runtime.volumes: the image itself must hold it.")


def _sources(spec: TrainingJobSpec) -> tuple[tuple[str, tuple[TextSource, ...]], ...]:
    return (("data.train", spec.data.train), ("evaluation", spec.evaluation))


RULES = (
    Rule(("tokenizer",), check_tokenizer),
    Rule(("tokenizer.path",), check_tokenizer_path),
    Rule(SECTIONS, check_source_names),
    Rule(SECTIONS, check_data_paths),
    Rule(SECTIONS, check_patterns),
    Rule(SECTIONS, check_formats),
    Rule(SECTIONS, check_columns),
)
WARNINGS = (
    Rule(("evaluation", "training.steps"), warn_of_unreached_evaluation),
    Rule(SECTIONS, warn_of_evaluation_on_training_data),
    Rule(("data.train",), warn_of_repeated_sources),
    Rule(SECTIONS, warn_of_record_files),
    Rule(("tokenizer",), warn_of_missing_separator),
    Rule((*SECTIONS, "tokenizer.path", "runtime.volumes"), warn_of_unmounted_files),
)
