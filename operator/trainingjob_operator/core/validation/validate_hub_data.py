"""Rules about sources of data sets of the Hugging Face hub."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule
from trainingjob_operator.core.validation.validate_data import SECTIONS, list_sources

TOKEN = "spec.data.token"  # noqa: S105  # the name of a field
WEIGHTS_TOKEN = "spec.checkpoint.initializeFrom.huggingFace.token"  # noqa: S105  # as above


def check_source_places(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each source must have one of `path` and `huggingFace`."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            if (source.path is None) == (source.hugging_face is None):
                found = (
                    "both. Remove one of the two."
                    if source.path
                    else "none. Write the path of a file or a folder in the pod, or a data set of the hub."
                )
                message = f"must have exactly one of `path` and `huggingFace`, but has {found}"
                yield Problem(f"spec.{section}[{number}]", None, message)


def check_hub_files(spec: TrainingJobSpec) -> Iterator[Problem]:
    """With `huggingFace`, the files are those of a configuration and a split, or those of `pattern`."""
    for section, sources in list_sources(spec):
        for number, source in enumerate(sources):
            if source.hugging_face and source.pattern is not None:
                at = f"spec.{section}[{number}]"
                for field in ("configuration", "split"):
                    if (value := getattr(source.hugging_face, field)) is not None:
                        limit = quote_field(f"{at}.pattern", source.pattern)
                        message = (
                            f"must not be set with {limit}, which chooses the files itself. Remove one of the two."
                        )
                        yield Problem(f"{at}.huggingFace.{field}", value, message)


def check_hub_token(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`data.token` requires a source with `huggingFace`, and is the only token for the hub."""
    if spec.data.token is None:
        return
    source = spec.checkpoint.initialize_from
    if not any(one.hugging_face for _, sources in list_sources(spec) for one in sources):
        message = "must not be set without a source with `huggingFace`. Files of a path need no token. Remove it."
        yield Problem(TOKEN, None, message)
    elif source and source.hugging_face and source.hugging_face.token:
        message = f"must not be set beside {WEIGHTS_TOKEN}: pods have one variable HF_TOKEN. Remove one of the two."
        yield Problem(TOKEN, None, message)


RULES = (
    Rule(SECTIONS, check_source_places),
    Rule(SECTIONS, check_hub_files),
    Rule((*SECTIONS, "data.token", "checkpoint.initializeFrom"), check_hub_token),
)
