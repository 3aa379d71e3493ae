"""Rules about texts: training data, held-out evaluation, and the tokenizer that reads them."""

from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from trainingjob_api.base import MAX_SHORT_NAME
from trainingjob_api.data import TextSource
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem
from trainingjob_operator.core.names import free_name
from trainingjob_operator.core.validation.folders import is_below
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
                free = free_name(name, taken, MAX_SHORT_NAME)
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
            for field, glob in (("pattern", source.pattern), *((f"exclude[{i}]", g) for i, g in _numbered(source))):
                if glob.startswith("/") or ".." in PurePosixPath(glob).parts:
                    message = f"{glob} leaves the folder of the source: patterns are relative to `path`."
                    yield Problem(f"{at}.{field}", glob, message)


def warn_of_evaluation_never(spec: TrainingJobSpec) -> Iterator[Problem]:
    """An evaluation that comes after the last step never runs."""
    for number, evaluation in enumerate(spec.evaluation):
        if evaluation.every_steps > spec.training.steps:
            message = f"{evaluation.every_steps} is above spec.training.steps, {spec.training.steps}: it never runs."
            path = f"spec.evaluation[{number}].everySteps"
            yield Problem(path, evaluation.every_steps, message, (str(spec.training.steps),))


def warn_of_trained_evaluation(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Text that is trained on is not held out."""
    for number, held_out in enumerate(spec.evaluation):
        for source in spec.data.train:
            if (held_out.path, held_out.pattern) == (source.path, source.pattern):
                message = f"{held_out.path} is trained on as {source.name}: the loss on it says little."
                yield Problem(f"spec.evaluation[{number}].path", held_out.path, message)


def warn_of_repeated_sources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A source that stands twice is trained on twice as often as the others."""
    seen: dict[tuple[PurePosixPath, str], str] = {}
    for number, source in enumerate(spec.data.train):
        first = seen.setdefault((PurePosixPath(source.path), source.pattern), source.name)
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


def _numbered(source: TextSource) -> Iterable[tuple[int, str]]:
    return enumerate(source.exclude)


RULES = (
    Rule(("tokenizer",), check_tokenizer),
    Rule(("tokenizer.path",), check_tokenizer_path),
    Rule(SECTIONS, check_source_names),
    Rule(SECTIONS, check_data_paths),
)
WARNINGS = (
    Rule(("evaluation", "training.steps"), warn_of_evaluation_never),
    Rule(SECTIONS, warn_of_trained_evaluation),
    Rule(("data.train",), warn_of_repeated_sources),
    Rule((*SECTIONS, "tokenizer.path", "runtime.volumes"), warn_of_unmounted_files),
)
