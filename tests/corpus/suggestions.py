"""The grammar of the nearest legal values of a problem, as a reader or a program applies them.

    suggestion = change {" and " change} [" (" remark ")"]
    change     = [field ": "] value

Without a field the value belongs at the problem's own path. A field that begins with `spec.` is a path, any other one
stands below the problem's path. Where the problem is that a field is not known, the suggestion is its right name, or
its right path below the same object.
"""

import copy
import re
from typing import Any

import yaml

from tests.corpus.cases import Job, find_place, set_at
from trainingjob_api.problem import Problem
from trainingjob_operator.cli.documents import KubectlLoader

UNKNOWN = "is not a field of"


def follow(job: Job, problem: Problem) -> Job:
    """Return the job with the first suggestion of a problem followed."""
    changed = copy.deepcopy(job)
    if UNKNOWN in problem.message:
        rename(changed, problem.path, problem.nearest[0])
        return changed
    for path, value in read_suggestion(problem.path, problem.nearest[0]):
        set_at(changed, path, value)
    return changed


def read_suggestion(path: str, text: str) -> list[tuple[str, Any]]:
    """Return the values that a suggestion sets, by path."""
    without_remark = re.sub(r" \([^()]*\)$", "", text)
    return [_read_change(path, change) for change in re.split(r" and (?=[\w.\[\]]+: )", without_remark)]


def rename(job: Job, path: str, name: str) -> None:
    """Give the field at a path another name, or move it to a path below its object."""
    *parents, last = find_place(job, path)
    place: Any = job
    for part in parents:
        place = place[part]
    *objects, new = name.split(".")
    target = place
    for part in objects:
        target = target.setdefault(part, {})
    target[new] = place.pop(last)


def _read_change(path: str, change: str) -> tuple[str, Any]:
    match = re.match(r"([A-Za-z][\w.\[\]]*): (.*)$", change)
    if not match:
        return path, _read_value(change)
    field, value = match.groups()
    return (field if field.startswith("spec.") else f"{path}.{field}"), _read_value(value)


def _read_value(text: str) -> Any:
    return yaml.load(text, Loader=KubectlLoader)  # noqa: S506  # it is a safe one
