"""Rules about the model, the data and the course of training."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import PurePosixPath

from trainingjob_api.data import TextSource
from trainingjob_api.job import TrainingJobSpec
from trainingjob_api.problem import Problem
from trainingjob_operator.core.mesh import nearest_divisors, nearest_multiples
from trainingjob_operator.core.rule import Rule

BYTE_VOCABULARY = 257
"""256 bytes, and the end of a document."""
SECTIONS = ("data.train", "evaluation")


def check_heads(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Query heads share key and value heads evenly."""
    heads, kv_heads = spec.model.num_heads, spec.model.num_kv_heads
    if heads % kv_heads:
        message = f"{kv_heads} does not divide spec.model.numHeads, {heads}."
        nearest = tuple(str(divisor) for divisor in nearest_divisors(heads, kv_heads))
        yield Problem("spec.model.numKvHeads", kv_heads, message, nearest)


def check_head_dim(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Rotary positions turn pairs of features."""
    head_dim = spec.model.head_dim
    if head_dim % 2:
        message = f"{head_dim} is odd, but rotary positions turn pairs of features."
        nearest = (str(head_dim - 1), str(head_dim + 1))
        yield Problem("spec.model.headDim", head_dim, message, nearest)


def check_vocabulary(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The vocabulary must hold every id of the byte tokenizer; other tokenizers are files that only hosts can read."""
    vocab = spec.model.vocab_size
    if spec.tokenizer.type == "byte" and vocab < BYTE_VOCABULARY:
        message = f"{vocab} is too small: the byte tokenizer has {BYTE_VOCABULARY} ids."
        yield Problem("spec.model.vocabSize", vocab, message, (str(BYTE_VOCABULARY),))


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
            yield Problem(f"spec.tokenizer.{field}", value, message)


def check_source_names(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Names tell sources apart in messages and metrics."""
    for section, sources in _sources(spec):
        counts = Counter(source.name for source in sources)
        for number, source in enumerate(sources):
            if counts[source.name] > 1 and source.name in {earlier.name for earlier in sources[:number]}:
                taken = f"{source.name} is the name of another item of the list."
                yield Problem(f"spec.{section}[{number}].name", source.name, taken, (f"{source.name}-{number}",))


def check_data_paths(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Sources stay below the folders that they name."""
    for section, sources in _sources(spec):
        for number, source in enumerate(sources):
            at = f"spec.{section}[{number}]"
            if ".." in PurePosixPath(source.path.removeprefix("python:")).parts:
                yield Problem(f"{at}.path", source.path, f"{source.path} steps upwards: name the folder itself.")
            elif source.path.startswith("python:/"):
                message = f"{source.path} is not a folder of the standard library: write it without the first slash."
                yield Problem(f"{at}.path", source.path, message, (f"python:{source.path[7:].strip('/')}",))
            for field, glob in (("pattern", source.pattern), *((f"exclude[{i}]", g) for i, g in _numbered(source))):
                if glob.startswith("/") or ".." in PurePosixPath(glob).parts:
                    message = f"{glob} leaves the folder of the source: patterns are relative to `path`."
                    yield Problem(f"{at}.{field}", glob, message)


def check_warmup(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The warm-up must end before training does."""
    warmup, steps = spec.schedule.warmup_steps, spec.training.steps
    if warmup >= steps:
        message = f"{warmup} must be fewer than spec.training.steps, {steps}."
        yield Problem("spec.schedule.warmupSteps", warmup, message, (str(steps - 1),))


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


def warn_of_rare_saves(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A job that never saves on its way loses everything with its first failure."""
    every, steps = spec.checkpoint.save.every_steps, spec.training.steps
    if every > steps:
        message = f"{every} is above spec.training.steps, {steps}: a failure before the end starts from scratch."
        yield Problem("spec.checkpoint.save.everySteps", every, message, (str(max(steps // 10, 1)),))


def warn_of_unsaved_keeps(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Only saved steps can be kept."""
    keep, save = spec.checkpoint.keep.every_steps, spec.checkpoint.save.every_steps
    if keep is not None and keep % save:
        message = (
            f"{keep} is not a multiple of spec.checkpoint.save.everySteps, {save}: some steps are not there to keep."
        )
        nearest = tuple(str(multiple) for multiple in nearest_multiples(save, keep))
        yield Problem("spec.checkpoint.keep.everySteps", keep, message, nearest)


def warn_of_emulated_bfloat16(spec: TrainingJobSpec) -> Iterator[Problem]:
    """CPUs compute bfloat16 in float32 and round after each operation."""
    if spec.slices.accelerator == "cpu" and spec.precision.compute == "bfloat16":
        message = "bfloat16 is slower than float32 on cpu and less precise."
        yield Problem("spec.precision.compute", "bfloat16", message, ("float32",))


def _sources(spec: TrainingJobSpec) -> tuple[tuple[str, tuple[TextSource, ...]], ...]:
    return (("data.train", spec.data.train), ("evaluation", spec.evaluation))


def _numbered(source: TextSource) -> Iterable[tuple[int, str]]:
    return enumerate(source.exclude)


RULES = (
    Rule(("model.numHeads", "model.numKvHeads"), check_heads),
    Rule(("model.headDim",), check_head_dim),
    Rule(("model.vocabSize", "tokenizer.type"), check_vocabulary),
    Rule(("tokenizer",), check_tokenizer),
    Rule(SECTIONS, check_source_names),
    Rule(SECTIONS, check_data_paths),
    Rule(("schedule.warmupSteps", "training.steps"), check_warmup),
)
WARNINGS = (
    Rule(("evaluation", "training.steps"), warn_of_evaluation_never),
    Rule(SECTIONS, warn_of_trained_evaluation),
    Rule(("checkpoint.save.everySteps", "training.steps"), warn_of_rare_saves),
    Rule(("checkpoint.save.everySteps", "checkpoint.keep.everySteps"), warn_of_unsaved_keeps),
    Rule(("slices.accelerator", "precision.compute"), warn_of_emulated_bfloat16),
)
