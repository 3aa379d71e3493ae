"""Rules about conversations: the fields of records that hold them, their template, and fine-tuning on them."""

from collections.abc import Iterator

from trainingjob_api.base import Strict
from trainingjob_api.decoding import list_samples
from trainingjob_api.formats import FORMATS, formats_with
from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import DISTILL, DPO, SFT
from trainingjob_api.spec.tokenizer import HUGGING_FACE
from trainingjob_operator.core.planner.problem_messages import has_no_effect
from trainingjob_operator.core.validation.rule import Rule, find_unused_alternatives
from trainingjob_operator.core.validation.validate_data import SECTIONS, list_sources

_CONTENTS = {"chosen": "preferred answer", "rejected": "other answer", "messages": "conversation"}
"""Contents of fields whose names do not describe them."""


def check_objective(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Of the objects of `objective` that belong to a type, only the one that `objective.type` names may be set."""
    if spec.objective:
        objects: dict[str, Strict | None] = {
            SFT: spec.objective.sft,
            DPO: spec.objective.dpo,
            DISTILL: spec.objective.distill,
        }
        yield from find_unused_alternatives("spec.objective", spec.objective.type, objects)


def check_record_fields(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A record has one document: of `column`, of `messages`, or of `prompt` and `completion` together, or it has two.

    The two are of `chosen` and `rejected`, which share their `prompt`, if it is set. `tools` belongs to `messages`.
    """
    for source_path, source in list_text_sources(spec):
        documents = ("column", "messages", "completion", "chosen")
        pairs = ((field, other) for index, field in enumerate(documents) for other in documents[index + 1 :])
        for field, other in pairs:
            if (value := getattr(source, field)) and getattr(source, other):
                message = f"must not be set together with `{other}`: a record has one document. Remove one of the two."
                yield Problem(f"{source_path}.{field}", value, message)
        for field, other in (
            ("messages", "tools"),
            ("prompt", "completion"),
            ("chosen", "rejected"),
            ("rejected", "chosen"),
            *(() if source.chosen or source.rejected else [("completion", "prompt")]),
        ):
            if getattr(source, other) and getattr(source, field) is None:
                content = _CONTENTS.get(field, field)
                message = f"must be set together with `{other}`. Write the field of a record that holds the {content}."
                yield Problem(f"{source_path}.{field}", None, message)


def check_answers(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With `objective.type: sft`, each training source has `messages`, or `prompt` and `completion`."""
    if not spec.objective or spec.objective.type != SFT:
        return
    for number, source in enumerate(spec.data.train):
        if source.messages is None and source.prompt is None and not source.has_answers:
            message = (
                "must be set with `spec.objective.type: sft`. Write the field of a record that holds its conversation, "
                "or set `prompt` and `completion`."
            )
            if "messages" not in FORMATS[source.format].fields:
                others = " or ".join(f"`format: {name}`" for name in formats_with("messages"))
                message += f" Records need {others}."
            yield Problem(f"spec.data.train[{number}].messages", None, message)


def check_chat_template(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`messages` require a chat template: `tokenizer.chatTemplate`, or that of a folder of `type: huggingFace`."""
    tokenizer = spec.tokenizer
    path = next(_list_conversations(spec), None)
    if path and tokenizer.chat_template is None and tokenizer.type != HUGGING_FACE:
        message = (
            f"must be set: `{path}.messages` holds conversations, and `type: {tokenizer.type}` has no template. Set "
            "`path` to a Jinja file in the pod, or set `type: huggingFace` and the path of a model's folder."
        )
        yield Problem("spec.tokenizer.chatTemplate", None, message)


def warn_of_unused_template(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`tokenizer.chatTemplate` has no effect without `messages`, or pairs of answers, which may be conversations."""
    template = spec.tokenizer.chat_template
    has_pairs = any(source.has_pairs for _, source in list_text_sources(spec))
    if template and not has_pairs and not any(_list_conversations(spec)):
        message = has_no_effect("no source has `messages` or `chosen`", template.path)
        yield Problem("spec.tokenizer.chatTemplate.path", template.path, message)


def warn_of_cut_conversations(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Conversations of fine-tuning and distillation should be isolated: none is then cut, or attends to another."""
    kind = spec.objective.type if spec.objective else None
    has_answers = kind == SFT or (kind == DISTILL and any(source.has_answers for source in spec.data.train))
    if has_answers and spec.data.packing is None:
        message = (
            "should be set. Without it, conversations are cut where a sequence is full, and attend to those before "
            "them. Write `packing: {type: bestFit}`."
        )
        yield Problem("spec.data.packing", None, message)


def _list_conversations(spec: TrainingJobSpec) -> Iterator[str]:
    """Yield the paths of sources and samples that have `messages`."""
    yield from (source_path for source_path, source in list_text_sources(spec) if source.messages)
    yield from (placed_sample.path for placed_sample in list_samples(spec) if placed_sample.sample.messages)


def list_text_sources(spec: TrainingJobSpec) -> Iterator[tuple[str, TextSource]]:
    """Yield all sources, each with its path."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            yield f"spec.{section}[{number}]", source


RULES = (
    Rule(("objective",), check_objective),
    Rule(SECTIONS, check_record_fields),
    Rule(("objective", "data.train"), check_answers),
    Rule((*SECTIONS, "tokenizer"), check_chat_template),
)
WARNINGS = (
    Rule((*SECTIONS, "tokenizer.chatTemplate"), warn_of_unused_template),
    Rule(("objective", "data.train", "data.packing"), warn_of_cut_conversations),
)
