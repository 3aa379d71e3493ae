"""Rules about text: training data, held-out evaluation data, and the tokenizer."""

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from pydantic.alias_generators import to_camel

from trainingjob_api.base import MAX_SHORT_NAME, is_bucket
from trainingjob_api.braces import expand_braces
from trainingjob_api.formats import (
    FORMATS,
    FormatName,
    advise_format,
    find_records,
    find_unsupported,
    formats_with,
    without_compression,
)
from trainingjob_api.globs import excludes_everything, find_pattern_problem
from trainingjob_api.parse.parse_messages import format_value
from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.hub import HubTokenizer
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.tokenizer import BYTE, HUGGING_FACE, SENTENCE_PIECE, TOKENIZERS, Tokenizer, TokenizerType
from trainingjob_operator.core.names import unused_name
from trainingjob_operator.core.planner.problem_messages import must_be_direct, must_be_unique, quote_field
from trainingjob_operator.core.validation.reserved_folders import is_below
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_storage import check_bucket

TOKENIZER_PLACES: dict[TokenizerType, str] = {
    TOKENIZERS: "a tokenizer.json file",
    HUGGING_FACE: "the folder of a model",
    SENTENCE_PIECE: "a SentencePiece model",
}
SECTIONS = ("data.train", "evaluation")


def check_tokenizer(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A tokenizer other than `type: byte` requires `path` or `huggingFace`; `byte` has no files or special tokens."""
    tokenizer = spec.tokenizer
    if tokenizer.hugging_face is not None:
        yield from _check_hub_tokenizer(tokenizer, tokenizer.hugging_face)
    if tokenizer.type != BYTE:
        if tokenizer.path is None and tokenizer.hugging_face is None:
            file_noun = TOKENIZER_PLACES[tokenizer.type]
            other = ", or set `huggingFace` to a repository" if tokenizer.type == HUGGING_FACE else ""
            message = (
                f"must be set with `type: {tokenizer.type}`. Write the absolute path of {file_noun} in the pod{other}."
            )
            yield Problem("spec.tokenizer.path", None, message)
        return
    for field in ("path", "begin_of_document", "end_of_document"):
        if (value := getattr(tokenizer, field)) is not None:
            message = (
                "must not be set with `type: byte`. The byte tokenizer has no file, and its own end-of-document token."
            )
            nearest = ("spec.tokenizer.type: tokenizers",) if tokenizer.path else ()
            yield Problem(f"spec.tokenizer.{to_camel(field)}", value, message, nearest)


def _check_hub_tokenizer(tokenizer: Tokenizer, hub: HubTokenizer) -> Iterator[Problem]:
    section_path = "spec.tokenizer.huggingFace"
    if tokenizer.type != HUGGING_FACE:
        message = f"must not be set with `type: {tokenizer.type}`, which does not read a repository."
        yield Problem(section_path, hub.repository, message, (f"spec.tokenizer.type: {HUGGING_FACE}",))
    elif tokenizer.path is not None:
        message = f"must not be set beside {quote_field('spec.tokenizer.path', tokenizer.path)}. Remove one of the two."
        yield Problem(section_path, hub.repository, message)


def check_tokenizer_path(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`tokenizer.path` and the path of the chat template must not contain `..`."""
    for field_path, path in _tokenizer_paths(spec.tokenizer):
        if is_bucket(path):
            yield from check_bucket(field_path, path)
        elif ".." in PurePosixPath(path).parts:
            yield Problem(field_path, path, must_be_direct(path, "file"))


def _tokenizer_paths(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yield the files that a tokenizer is read from, each with its field."""
    if tokenizer.path is not None:
        yield "spec.tokenizer.path", tokenizer.path
    if tokenizer.chat_template is not None:
        yield "spec.tokenizer.chatTemplate.path", tokenizer.chat_template.path


def check_source_names(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The names of the sources of a list must be unique, because messages and metrics use them."""
    for section, sources in list_sources(spec):
        names = [source.name for source in sources]
        used_names = set(names)
        for number, name in enumerate(names):
            if name in names[:number]:
                message = must_be_unique(name, "an earlier item of the list")
                free = unused_name(name, used_names, MAX_SHORT_NAME)
                used_names.add(free)
                yield Problem(f"spec.{section}[{number}].name", name, message, (free,))


def check_data_paths(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Paths of sources must not contain `..`, or `.` in a bucket, and a path after `python:` must be relative."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            field_path, path = f"spec.{section}[{number}].path", source.path or ""
            if is_bucket(path):
                yield from check_bucket(field_path, path)
            elif ".." in PurePosixPath(path.removeprefix("python:")).parts:
                yield Problem(field_path, path, must_be_direct(path))
            elif path.startswith("python:/"):
                message = f"{path} must be relative to the standard library. Remove the slash after `python:`."
                yield Problem(field_path, path, message, (f'"python:{path[7:].strip("/")}"',))


def check_patterns(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Patterns must be supported globs inside the source's folder, and match files of supported formats."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            source_path = f"spec.{section}[{number}]"
            if not FORMATS[source.format].has_files:
                continue
            yield from _check_pattern(f"{source_path}.pattern", source.glob, source.format)
            for index, exclude in enumerate(source.exclude):
                yield from _check_exclude(f"{source_path}.exclude[{index}]", exclude, source.glob)


def _check_pattern(field_path: str, pattern: str, format_name: FormatName) -> Iterator[Problem]:
    if error := _describe_outside_pattern(pattern):
        yield Problem(field_path, pattern, error)
    elif fault := find_pattern_problem(pattern):
        nearest = tuple(
            _quote(nearest_pattern)
            for nearest_pattern in fault.nearest
            if not find_unsupported(nearest_pattern, format_name)
        )
        yield Problem(field_path, pattern, f"{format_value(pattern)} {fault.message}", nearest)
    elif kind := next(
        filter(None, (find_unsupported(alternative, format_name) for alternative in expand_braces(pattern))), ""
    ):
        decompressed = without_compression(pattern, format_name)
        fix = (
            "decompress the files"
            if decompressed
            else advise_format(kind, "convert the files to UTF-8 text, with one document per file")
        )
        message = (
            f"{format_value(pattern)} must not match {kind} files with `format: {format_name}`. {_format_sentence(fix)}"
        )
        yield Problem(field_path, pattern, message, (_quote(decompressed),) if decompressed else ())


def _check_exclude(field_path: str, exclude: str, pattern: str) -> Iterator[Problem]:
    if error := _describe_outside_pattern(exclude):
        yield Problem(field_path, exclude, error)
    elif fault := find_pattern_problem(exclude, folders=True):
        nearest = (_quote(suggestion) for suggestion in fault.nearest if not excludes_everything(pattern, suggestion))
        yield Problem(field_path, exclude, f"{format_value(exclude)} {fault.message}", tuple(nearest))
    elif excludes_everything(pattern, exclude):
        yield Problem(
            field_path,
            exclude,
            f"{format_value(exclude)} must not exclude every file that `pattern` matches. Remove it.",
        )


def _format_sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _quote(glob: str) -> str:
    """Return a pattern as a quoted YAML string, because an unquoted `*` begins an alias."""
    return json.dumps(glob, ensure_ascii=False)


def _describe_outside_pattern(glob: str) -> str:
    if glob.startswith("/") or ".." in PurePosixPath(glob).parts:
        return f"{glob} must stay inside the source's folder. Patterns are relative to `path`."
    return ""


def check_formats(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A path must not name a file of an unsupported format."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            path = source.path or ""
            if kind := find_unsupported(path, source.format):
                decompressed = without_compression(path, source.format)
                fix = "decompress it" if decompressed else advise_format(kind, "convert it to UTF-8 text")
                message = (
                    f"{path} must not have the extension of {kind} files with `format: {source.format}`. "
                    f"{_format_sentence(fix)} If it is a folder, append `/`."
                )
                nearest = (_quote(decompressed),) if decompressed else ()
                yield Problem(f"spec.{section}[{number}].path", path, message, nearest)


def warn_of_record_files(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Files of records, such as JSON Lines or CSV, are read verbatim as text."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            source_path = f"spec.{section}[{number}]"
            for field, value in (("path", source.path or ""), ("pattern", source.glob)):
                if kind := next(filter(None, (find_records(pattern, source.format) for pattern in _expand(value))), ""):
                    fix = advise_format(kind, "convert the records to JSON Lines and set `format: jsonl`")
                    message = (
                        f"{format_value(value)} selects {kind} files. Each file is read verbatim as one document, "
                        f"with keys, quotes and separators. To train on one field of each record, {fix}."
                    )
                    yield Problem(f"{source_path}.{field}", value, message)


def _expand(value: str) -> tuple[str, ...]:
    """Return the patterns that a pattern stands for; none if its braces are invalid, which is a problem already."""
    return () if find_pattern_problem(value, folders=True) else expand_braces(value)


def check_format_fields(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A field that belongs to some formats, such as `column`, must not be set with another one."""
    special = {field for record_format in FORMATS.values() for field in record_format.fields}
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            for field in sorted(special.difference(FORMATS[source.format].fields)):
                if (value := getattr(source, field)) is not None:
                    others = " or ".join(f"`format: {name}`" for name in formats_with(field))
                    message = f"must not be set with `format: {source.format}`. Remove it, or set {others}."
                    text = value if isinstance(value, str) else None
                    yield Problem(f"spec.{section}[{number}].{to_camel(field)}", text, message)


def check_packing(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`packing.type: bestFit` isolates documents."""
    packing = spec.data.packing
    if packing and packing.type == "bestFit" and packing.isolate_documents is False:
        message = "must not be false with `type: bestFit`. Remove it, or set `type: concat`."
        yield Problem("spec.data.packing.isolateDocuments", packing.isolate_documents, message, ("true",))


def warn_of_missing_separator(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Without `tokenizer.endOfDocument`, no token separates two documents."""
    if spec.data.isolates_documents:
        return
    has_documents = any(
        source.messages is None and not source.has_pairs and not FORMATS[source.format].has_ids
        for _, sources in list_sources(spec)
        for source in sources
    )
    if has_documents and spec.tokenizer.type == TOKENIZERS and spec.tokenizer.end_of_document is None:
        message = (
            "should be set. Without it, no token separates two documents, and the model trains across their boundary. "
            "Write the tokenizer's end-of-document token, often `</s>` or `<|endoftext|>`."
        )
        yield Problem("spec.tokenizer.endOfDocument", None, message)


def warn_of_evaluation_on_training_data(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Evaluation text should not be training text."""
    for number, evaluation in enumerate(spec.evaluation):
        for source in spec.data.train:
            if evaluation.location and _list_files(evaluation) == _list_files(source):
                path = f"spec.evaluation[{number}].{evaluation.location_field}"
                message = (
                    f"{evaluation.location} is also the training source `{source.name}`. Its loss is not a held-out "
                    "loss."
                )
                yield Problem(path, evaluation.location, message)


def warn_of_repeated_sources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The job trains twice as often on a source that is listed twice."""
    seen: dict[object, str] = {}
    for number, source in enumerate(spec.data.train):
        first = seen.setdefault(_list_files(source), source.name)
        if source.location and first != source.name:
            message = f"{source.location} is already the source `{first}`. The job trains twice as often on its text."
            yield Problem(f"spec.data.train[{number}].{source.location_field}", source.location, message)


def _list_files(source: TextSource) -> tuple[object, ...]:
    """Return what decides which files a source has."""
    if source.hugging_face is None:
        return PurePosixPath(source.location), source.glob
    return source.hugging_face.model_dump_json(exclude={"revision"}), source.pattern


def warn_of_unmounted_files(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The image must contain files that are on no volume."""
    paths = {
        f"spec.{section}[{number}].path": source.path or ""
        for section, sources in list_sources(spec)
        for number, source in enumerate(sources)
    }
    mounts = [volume.mount_path for volume in spec.runtime.volumes]
    for field_path, path in (*paths.items(), *_tokenizer_paths(spec.tokenizer)):
        if path.startswith("/") and not any(is_below(path, mount) for mount in mounts):
            yield Problem(
                field_path, path, f"{path} is on no volume of `spec.runtime.volumes`. The image must contain it."
            )


def list_sources(spec: TrainingJobSpec) -> tuple[tuple[str, tuple[TextSource, ...]], ...]:
    """Return the lists of sources, each with the section that holds it."""
    return (("data.train", spec.data.train), ("evaluation", spec.evaluation))


RULES = (
    Rule(("tokenizer",), check_tokenizer),
    Rule(("tokenizer.path", "tokenizer.chatTemplate"), check_tokenizer_path),
    Rule(SECTIONS, check_source_names),
    Rule(SECTIONS, check_data_paths),
    Rule(SECTIONS, check_patterns),
    Rule(SECTIONS, check_formats),
    Rule(SECTIONS, check_format_fields),
    Rule(("data.packing",), check_packing),
)
WARNINGS = (
    Rule(SECTIONS, warn_of_evaluation_on_training_data),
    Rule(("data.train",), warn_of_repeated_sources),
    Rule(SECTIONS, warn_of_record_files),
    Rule((*SECTIONS, "tokenizer", "data.packing"), warn_of_missing_separator),
    Rule((*SECTIONS, "tokenizer.path", "tokenizer.chatTemplate", "runtime.volumes"), warn_of_unmounted_files),
)
