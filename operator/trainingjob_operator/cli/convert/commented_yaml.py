"""A converted job as YAML, with comments: what to fill in, and what was left out."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from trainingjob_api.spec.job import API_VERSION, KIND, TrainingJobSpec
from trainingjob_operator.cli.convert.draft_job import DraftJob, Leftover
from trainingjob_operator.cli.yaml_output import to_yaml

WIDTH = 110
KEY = re.compile(r"( *)([\w-]+):")


def as_manifest(draft: DraftJob) -> dict[str, Any]:
    """Return the job as an object, with the sections in the order of the API."""
    order = [field.alias for field in TrainingJobSpec.model_fields.values()]
    spec = {name: draft.spec[name] for name in order if name in draft.spec}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": draft.name}, "spec": spec}


def write_job(draft: DraftJob) -> str:
    """Return the YAML of a job: a comment above each line to fill in, and a list of what is left out."""
    lines = [f"# Converted from {draft.source}.", *_comment(_summarise(draft))]
    lines += _insert_comments(as_manifest(draft), draft.fill_in)
    if draft.leftovers:
        lines += ["", "# Left out, with the reason:"]
        lines += [line for leftover in draft.leftovers for line in _describe(leftover)]
    return "".join(f"{line}\n" for line in lines)


def _summarise(draft: DraftJob) -> str:
    if not draft.fill_in:
        return "Check it with `trainingjob validate`."
    return "Fill in what the comments name, then check it with `trainingjob validate`."


def _insert_comments(manifest: Mapping[str, Any], fill_in: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines of the YAML, with the comment of a path before its line."""
    path: list[str] = []
    for line in to_yaml(manifest).splitlines():
        match = KEY.match(line)
        if match:
            indent, key = match.groups()
            path = [*path[: len(indent) // 2], key]
            text = fill_in.get(".".join(path[1:])) if path[0] == "spec" else None
            yield from (f"{indent}{comment}" for comment in _comment(f"Fill in: {text}" if text else ""))
        yield line


def _describe(leftover: Leftover) -> Iterator[str]:
    """Yield the source's line as a comment, and the reason below it."""
    value = textwrap.shorten(json.dumps(leftover.value, default=str), 70, placeholder=" ...")
    yield f"#   {leftover.key}: {value}"
    yield from (f"#     {line}" for line in textwrap.wrap(f"{leftover.reason}.", WIDTH))


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, WIDTH)]
