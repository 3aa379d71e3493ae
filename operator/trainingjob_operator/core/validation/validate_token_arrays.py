"""Rules about sources of token ids."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import TOKENS
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_data import SECTIONS, list_sources


def check_document_ends(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Isolated documents of token ids need `tokens.endOfDocument`, which is an id of the vocabulary."""
    vocab_size = spec.model.vocab_size
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            path = f"spec.{section}[{number}].tokens.endOfDocument"
            end = source.tokens.end_of_document if source.tokens else None
            if source.format == TOKENS and end is None and spec.data.isolates_documents:
                message = "must be set, because `spec.data.packing` isolates documents. Write the id that ends each."
                yield Problem(path, None, message)
            elif end is not None and end >= vocab_size:
                message = f"{end} must be less than {quote_field('spec.model.vocabSize', vocab_size)}."
                yield Problem(path, end, message)


RULES = (Rule((*SECTIONS, "data.packing", "model"), check_document_ends),)
