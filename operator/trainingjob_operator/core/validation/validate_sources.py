"""Rules about where a source reads: files of a path, data sets of the Hugging Face hub, token ids, or nowhere."""

from collections.abc import Iterator

from pydantic.alias_generators import to_camel

from trainingjob_api.formats import FORMATS
from trainingjob_api.problem import Problem
from trainingjob_api.spec.data import TOKENS, TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_data import SECTIONS, list_sources

TOKEN = "spec.data.token"  # noqa: S105  # the name of a field
TOKENIZER_TOKEN = "spec.tokenizer.huggingFace.token"  # noqa: S105  # as above
WEIGHTS_TOKEN = "spec.checkpoint.initializeFrom.huggingFace.token"  # noqa: S105  # as above


def check_source_places(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A source must have one of `path` and `huggingFace`, or `format: synthetic`, which reads no files."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            if not FORMATS[source.format].has_files:
                yield from _check_no_files(f"spec.{section}[{number}]", source)
            elif (source.path is None) == (source.hugging_face is None):
                found = (
                    "both. Remove one of the two."
                    if source.path
                    else "none. Write the path of a file or a folder in the pod, or a data set of the hub."
                )
                message = f"must have exactly one of `path` and `huggingFace`, but has {found}"
                yield Problem(f"spec.{section}[{number}]", None, message)


def _check_no_files(source_path: str, source: TextSource) -> Iterator[Problem]:
    for field in ("path", "hugging_face", "pattern", "exclude"):
        if value := getattr(source, field):
            message = f"must not be set with `format: {source.format}`, which reads no files. Remove it."
            yield Problem(f"{source_path}.{to_camel(field)}", value if isinstance(value, str) else None, message)


def check_hub_files(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With `huggingFace`, the files are those of a configuration and a split, or those of `pattern`."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            if source.hugging_face and source.pattern is not None:
                source_path = f"spec.{section}[{number}]"
                for field in ("configuration", "split"):
                    if (value := getattr(source.hugging_face, field)) is not None:
                        limit = quote_field(f"{source_path}.pattern", source.pattern)
                        message = (
                            f"must not be set with {limit}, which chooses the files itself. Remove one of the two."
                        )
                        yield Problem(f"{source_path}.huggingFace.{field}", value, message)


def check_hub_token(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`data.token` requires a source with `huggingFace`. A job has one token for the hub."""
    has_source = any(source.hugging_face for _, sources in list_sources(spec) for source in sources)
    if spec.data.token and not has_source:
        message = "must not be set without a source with `huggingFace`. Files of a path need no token. Remove it."
        yield Problem(TOKEN, None, message)
    tokens = tuple(_list_hub_tokens(spec))
    for other in tokens[1:]:
        message = f"must not be set beside {tokens[0]}: pods have one variable HF_TOKEN. Remove one of the two."
        yield Problem(other, None, message)


def _list_hub_tokens(spec: TrainingJobSpec) -> Iterator[str]:
    """Yield the fields of the tokens for the hub that are set."""
    source, tokenizer = spec.checkpoint.initialize_from, spec.tokenizer.hugging_face
    if source and source.hugging_face and source.hugging_face.token:
        yield WEIGHTS_TOKEN
    if tokenizer and tokenizer.token:
        yield TOKENIZER_TOKEN
    if spec.data.token:
        yield TOKEN


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


RULES = (
    Rule(SECTIONS, check_source_places),
    Rule(SECTIONS, check_hub_files),
    Rule((*SECTIONS, "data.token", "tokenizer.huggingFace", "checkpoint.initializeFrom"), check_hub_token),
    Rule((*SECTIONS, "data.packing", "model"), check_document_ends),
)
