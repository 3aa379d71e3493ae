"""The corpus: invalid and wasteful jobs, each an example with a few parts replaced, and its problems.

`*.yaml` beside this file hold the cases, grouped by section. `GOLDEN=write` rewrites the problems, nothing else.
"""

import copy
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import yaml

from trainingjob_operator.core.validation.validate import ValidationResult, validate_job

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "crds/examples"
DEFAULT_BASE = "fixed"
WASTEFUL = "wasteful"
"""The file of jobs that are legal, but warned of."""

type Job = dict[str, Any]
type Place = tuple[str | int, ...]


@dataclass(frozen=True)
class Case:
    """One job of the corpus: the example it starts from, and values by the paths that problems name."""

    file: str
    name: str
    base: str
    patch: dict[str, Any]

    @property
    def job(self) -> Job:
        """Return the job: its `metadata.name` and its `spec`."""
        job = load_example(self.base)
        for path, value in self.patch.items():
            set_at(job, path, value)
        return job

    @cached_property
    def checked(self) -> ValidationResult:
        """Return the verdict on the job."""
        return judge(self.job)


def load_cases() -> list[Case]:
    """Return all cases in the order of the files."""
    return [case for path in list_files() for case in load_file(path)]


def list_files() -> list[Path]:
    """Return the files of the corpus."""
    return sorted(HERE.glob("*.yaml"))


@cache
def load_file(path: Path) -> list[Case]:
    """Return the cases of one file."""
    cases = yaml.safe_load(path.read_text())
    return [Case(path.stem, name, one.get("base", DEFAULT_BASE), one["patch"]) for name, one in cases.items()]


def load_example(name: str) -> Job:
    """Return an example as `kubectl` would send it: each time one that the caller may change."""
    manifest = copy.deepcopy(_read_example(name))
    return {"metadata": {"name": manifest["metadata"]["name"]}, "spec": manifest["spec"]}


@cache
def _read_example(name: str) -> Any:
    return yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text())


def judge(job: Job) -> ValidationResult:
    """Return the verdict on a job."""
    return validate_job(job["metadata"].get("name", ""), job["spec"])


def set_at(job: Job, path: str, value: Any) -> None:
    """Set the value at a path as problems write it, such as `spec.data.train[0].name`; None removes the value."""
    *parents, last = find_place(job, path)
    place: Any = job
    for part in parents:
        place = place[part] if isinstance(part, int) else place.setdefault(part, {})
    if isinstance(place, list) and last == len(place):
        place.append(value)
    elif value is None:
        place.pop(last, None)
    else:
        place[last] = value


def find_place(job: Job, path: str) -> Place:
    """Return the parts of a path. A key that is there may hold dots itself, as labels do."""
    parts: list[str | int] = []
    place: Any = job
    while path:
        if match := re.match(r"\[(\d+)\]", path):
            part, rest = int(match[1]), path[match.end() :]
        elif isinstance(place, dict) and path in place:
            part, rest = path, ""
        else:
            name = re.match(r"[^.\[]*", path)
            assert name
            part, rest = name[0], path[name.end() :]
        parts.append(part)
        place = _get(place, part)
        path = rest.removeprefix(".")
    return tuple(parts)


def _get(place: Any, part: str | int) -> Any:
    try:
        return place[part]
    except (KeyError, IndexError, TypeError):
        return None


def write_file(path: Path) -> str:
    """Return the expected text of a file: its cases unchanged, each with its current problems."""
    comments = [line for line in path.read_text().splitlines() if line.startswith("#")]
    return "\n".join([*comments, *(line for case in load_file(path) for line in _write_case(case))]) + "\n"


def _write_case(case: Case) -> Iterator[str]:
    checked = case.checked
    yield f"{_inline(case.name)}:"
    if case.base != DEFAULT_BASE:
        yield f"  base: {case.base}"
    yield "  patch:"
    yield from (f"    {_inline(field)}: {_inline(value)}" for field, value in case.patch.items())
    for key, reported in (("problems", checked.problems), ("warnings", checked.warnings)):
        if reported:
            yield f"  {key}:"
            yield from (f"    - {_quoted(str(problem))}" for problem in reported)


def _inline(value: Any) -> str:
    """Return a value as YAML on one line."""
    if isinstance(value, str) and re.fullmatch(r"[^'\"\\\n]*[^\w.\[\]/\"\\\n-][^'\"\\\n]*", value):
        return f'"{value}"'
    if isinstance(value, str) and not value.isprintable():
        return json.dumps(value, ensure_ascii=False)
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, allow_unicode=True, width=10_000)
    return str(text).removesuffix("\n").removesuffix("\n...")


def _quoted(text: str) -> str:
    """Return a text in the quotes that need the fewest escapes."""
    return "'" + text.replace("'", "''") + "'" if '"' in text or "\\" in text else f'"{text}"'
