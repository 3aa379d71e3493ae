"""Rules about fill-in-the-middle: it needs three tokens of the tokenizer, and documents of plain text."""

from collections.abc import Iterator

from trainingjob_api.formats import FORMATS
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.tokenizer import BYTE
from trainingjob_operator.core.planner.problem_messages import has_no_effect, must_be_unique, quote_field
from trainingjob_operator.core.validation.rule import Rule

FIELD = "spec.data.fillInTheMiddle"


def check_middle_tokenizer(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`data.fillInTheMiddle` needs a tokenizer with its tokens. `tokenizer.type: byte` has only bytes."""
    if spec.data.fill_in_the_middle and spec.tokenizer.type == BYTE:
        field = quote_field("spec.tokenizer.type", BYTE)
        message = f"must not be set with {field}, which has no such tokens. Use another tokenizer, or remove it."
        yield Problem(FIELD, None, message)


def check_middle_tokens(spec: TrainingJobSpec) -> Iterator[Problem]:
    """The three tokens of `data.fillInTheMiddle` must differ."""
    settings = spec.data.fill_in_the_middle
    if settings is None:
        return
    kind_by_token: dict[str, str] = {}
    tokens = {"prefix": settings.prefix_token, "suffix": settings.suffix_token, "middle": settings.middle_token}
    for kind, token in tokens.items():
        if token in kind_by_token:
            message = must_be_unique(token, f"`{kind_by_token[token]}Token`", "value")
            yield Problem(f"{FIELD}.{kind}Token", token, message)
        kind_by_token.setdefault(token, kind)


def check_middle_sources(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`data.fillInTheMiddle` needs a source of plain text: answers and token ids stay as they are."""
    sources = spec.data.train
    if spec.data.fill_in_the_middle and all(source.has_answers or FORMATS[source.format].has_ids for source in sources):
        reason = "no source of `spec.data.train` holds documents of plain text, but only answers or token ids"
        yield Problem(FIELD, None, f"{has_no_effect(reason)} Remove it.")


RULES = (
    Rule(("data.fillInTheMiddle", "tokenizer.type"), check_middle_tokenizer),
    Rule(("data.fillInTheMiddle",), check_middle_tokens),
    Rule(("data.fillInTheMiddle", "data.train"), check_middle_sources),
)
