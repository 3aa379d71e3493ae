"""A converted job as YAML, with comments: what to fill in, and what was left out."""

import json
import textwrap
from collections.abc import Iterator
from typing import Any

from trainingjob_api.spec.job import API_VERSION, KIND, TrainingJobSpec
from trainingjob_operator.cli.convert.draft_job import DraftJob, Omission
from trainingjob_operator.cli.yaml_output import COMMENT_WIDTH, to_comment, to_commented_lines

MAX_VALUE = 70
"""Characters of a source's value in a comment."""


def as_manifest(draft: DraftJob) -> dict[str, Any]:
    """Return the job as an object, with the sections in the order of the API."""
    order = [field.alias for field in TrainingJobSpec.model_fields.values()]
    spec = {name: draft.spec[name] for name in order if name in draft.spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": draft.name}, "spec": spec}


def write_job(draft: DraftJob) -> str:
    """Return the YAML of a job: a comment above each line to fill in, and a list of what is left out."""
    comments = {f"spec.{path}": f"Fill in: {text}" for path, text in draft.fill_in.items()}
    lines = [f"# Converted from {draft.source}.", *to_comment(_summarise(draft))]
    lines += to_commented_lines(as_manifest(draft), comments)
    if draft.omissions:
        lines += ["", "# Left out, with the reason:"]
        lines += [line for omission in draft.omissions for line in _describe(omission)]
    return "".join(f"{line}\n" for line in lines)


def _summarise(draft: DraftJob) -> str:
    if not draft.fill_in:
        return "Check it with `trainingjob validate`."
    return "Fill in what the comments name, then check it with `trainingjob validate`."


def _describe(omission: Omission) -> Iterator[str]:
    """Yield the source's line as a comment, and the reason below it."""
    value = json.dumps(omission.value, default=str)
    yield f"#   {omission.key}: {value if len(value) <= MAX_VALUE else f'{value[:MAX_VALUE]} ...'}"
    yield from (f"#     {line}" for line in textwrap.wrap(f"{omission.reason}.", COMMENT_WIDTH))
