"""Suggestions of problems: each one is applied to the document and validated before it is shown.

`Problem.nearest` describes the grammar of a suggestion. A suggestion is legal if it solves the problem and causes no
new one. It may include further changes that the validation then requires.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from trainingjob_api.parse.parse_messages import describe_fields
from trainingjob_api.parse.parser import copy_containers, count_bytes
from trainingjob_api.problem import Problem

type Document = dict[str, Any]
type ProblemFinder = Callable[[Document], Sequence[Problem]]
"""Return the problems of a document. Their suggestions need not be legal."""

MAX_CHECKS = 48
"""Validations per answer. A webhook has a time budget, and one validation takes about a millisecond."""
MAX_CHECKED_PROBLEMS = 512
"""Total problems that these validations may find, because each problem takes time."""
MAX_PLANS = 3000
"""Planned sizes after which only one more validation runs. A choice of the mesh plans up to several thousand sizes, and
a thousand take about half a second."""
MAX_CHECKED_BYTES = 2**20
"""Total bytes that these validations may read."""
MAX_FURTHER_CHANGES = 4
"""Changes of other fields that one suggestion may require."""
UNKNOWN_FIELD = " is not a field of "
"""Part of the message about an unknown field. The suggestion of that problem is the right name."""

_REMARK = re.compile(r" \([^()]*\)$")
_NEXT_CHANGE = re.compile(r" and (?=[A-Za-z][\w.\[\]]*: )")
_CHANGE = re.compile(r"([A-Za-z][\w.\[\]]*): (.*)", re.DOTALL)
_INDEX = re.compile(r"\[(\d+)\]")
_NAME = re.compile(r"[^.\[]+")

type _Path = tuple[str | int, ...]


def apply_suggestion(document: Document, problem: Problem, suggestion: str) -> Document | None:  # None: not applicable
    """Return the document with a suggestion applied."""
    if UNKNOWN_FIELD in problem.message:
        return _copy_and_change(
            document, lambda changed: _rename(changed, _parse_path(changed, problem.path), suggestion)
        )
    return _apply_changes(document, dict(_parse_changes(problem.path, suggestion)))


def _apply_changes(document: Document, changes: Mapping[str, str]) -> Document | None:  # None: no such field
    def set_all(changed: Document) -> None:
        for path, text in changes.items():
            _set(changed, _parse_path(changed, path), parse_value(text))

    return _copy_and_change(document, set_all)


def _copy_and_change(document: Document, change: Callable[[Document], None]) -> Document | None:
    try:
        changed: Document = copy_containers(document)
        change(changed)
    except (LookupError, TypeError, AttributeError, RecursionError):
        return None
    return changed


class SuggestionFilter:
    """Validates the suggestions for one document within a budget."""

    def __init__(
        self,
        document: Document,
        problems: Sequence[Problem],
        find_problems: ProblemFinder,
        num_plans: Callable[[], int] = lambda: 0,
    ) -> None:
        """Take a document, its problems, and the function that finds the problems of a changed document.

        `num_plans` returns the number of sizes that were planned for the document and its changes so far.
        """
        self._document = document
        self._find_problems = find_problems
        self._problem_paths = {problem.path for problem in problems}
        self._known_problems = {(problem.path, problem.message) for problem in problems}
        num_bytes = count_bytes(document)
        limits = (MAX_CHECKS, MAX_CHECKED_PROBLEMS // max(len(problems), 1), MAX_CHECKED_BYTES // max(num_bytes, 1))
        self._checks_left = min(limits) if num_bytes else 0
        self._num_plans = num_plans
        self._limit_plans()

    def keep_legal_suggestions(self, problems: Sequence[Problem]) -> list[Problem]:
        """Return problems or warnings with only their legal suggestions.

        The first suggestion of each is validated first.

        First suggestions beyond the budget are validated together, and kept if all of them are legal.
        """
        reached = len(problems) if self._checks_left else 0
        best = []
        for number, problem in enumerate(problems):
            if problem.nearest and self._checks_left <= 1 and number < reached:
                reached = number
            best.append(self._find_legal(problem, problem.nearest[:1]) if number < reached else [])
        if reached < len(problems) and self._are_legal(problems[reached:]):
            best[reached:] = [list(problem.nearest[:1]) for problem in problems[reached:]]
        rest = [self._find_legal(problem, problem.nearest[1:]) for problem in problems]
        return [
            _replace_suggestions(
                problem, tuple(dict.fromkeys((*first, *others))) or self._find_extended_suggestion(problem)
            )
            for problem, first, others in zip(problems, best, rest, strict=True)
        ]

    def _limit_plans(self) -> None:
        """Leave at most one validation once too many sizes were planned."""
        if self._num_plans() >= MAX_PLANS:
            self._checks_left = min(self._checks_left, 1)

    def _are_legal(self, problems: Sequence[Problem]) -> bool:
        """Return whether the first suggestions of several problems are legal together."""
        changed: Document | None = self._document
        for problem in problems:
            if problem.nearest:
                changed = apply_suggestion(changed, problem, problem.nearest[0]) if changed else None
        if changed is None or self._checks_left <= 0:
            return False
        self._checks_left -= 1
        solved_problems = {(problem.path, problem.message) for problem in problems if problem.nearest}
        after = {(problem.path, problem.message) for problem in self._find_problems(changed)}
        return not after & solved_problems and after <= self._known_problems

    def _find_legal(self, problem: Problem, suggestions: Sequence[str]) -> list[str]:
        """Return the suggestions that solve the problem and cause no new one."""
        if self._checks_left <= 0:
            return []
        return [
            suggestion
            for suggestion in suggestions
            if self._find_problems_after(problem, apply_suggestion(self._document, problem, suggestion)) == []
        ]

    def _find_extended_suggestion(self, problem: Problem) -> tuple[str, ...]:
        """Return the first suggestion that is legal together with the changes that it requires.

        A suggestion that only corrects the spelling of the user's value is kept if it has no problem itself.
        """
        for suggestion in problem.nearest:
            resolved = "" if UNKNOWN_FIELD in problem.message else self._extend_suggestion(problem, suggestion)
            if resolved:
                return (resolved,)
        return next(
            ((suggestion,) for suggestion in problem.nearest if self._corrects_spelling(problem, suggestion)), ()
        )

    def _extend_suggestion(self, problem: Problem, suggestion: str) -> str:
        """Return a suggestion with all further changes that it requires, or an empty string if these have no end.

        It is empty too if a further change has no suggestion.
        """
        changes = dict(_parse_changes(problem.path, suggestion))
        for _ in range(MAX_FURTHER_CHANGES):
            remaining = self._find_problems_after(problem, _apply_changes(self._document, changes))
            if not remaining:
                return _format_changes(problem.path, changes) if remaining == [] else ""
            if not all(item.nearest and UNKNOWN_FIELD not in item.message for item in remaining):
                return ""
            changes |= dict(_parse_changes(remaining[0].path, remaining[0].nearest[0]))
        return ""

    def _corrects_spelling(self, problem: Problem, suggestion: str) -> bool:
        if _normalize_text(problem.value) not in _normalize_text(suggestion) and UNKNOWN_FIELD not in problem.message:
            return False
        remaining = self._find_problems_after(problem, apply_suggestion(self._document, problem, suggestion))
        parent = problem.path.rpartition(".")[0]
        path = f"{parent}.{suggestion}".lstrip(".") if UNKNOWN_FIELD in problem.message else problem.path
        return remaining is not None and all(item.path not in (problem.path, path) for item in remaining)

    def _find_problems_after(
        self, problem: Problem, changed: Document | None
    ) -> list[Problem] | None:  # None: not validated
        """Return the problems that remain or appear after a change of the document."""
        if changed is None or self._checks_left <= 0:
            return None
        self._checks_left -= 1
        after = self._find_problems(changed)
        self._limit_plans()
        return [item for item in after if self._is_remaining_or_new(problem, item)]

    def _is_remaining_or_new(self, problem: Problem, after: Problem) -> bool:
        key = (after.path, after.message)
        if key == (problem.path, problem.message):
            return True
        return key not in self._known_problems and (after.path == problem.path or after.path not in self._problem_paths)


def _replace_suggestions(problem: Problem, nearest: tuple[str, ...]) -> Problem:
    message = problem.message
    if problem.nearest and not nearest and message.endswith(f"{UNKNOWN_FIELD}{problem.path.rpartition('.')[0]}."):
        message += describe_fields(problem.path)
    return replace(problem, message=message, nearest=nearest)


def _normalize_text(value: object) -> str:
    return re.sub(r"[^a-z0-9]", "", str(value).lower())


def _parse_changes(path: str, suggestion: str) -> Iterator[tuple[str, str]]:
    """Yield the changes of a suggestion: the full path of each field, and the text of its value."""
    for change in _NEXT_CHANGE.split(_REMARK.sub("", suggestion)):
        match = _CHANGE.fullmatch(change)
        if match is None:
            yield path, change
        else:
            field, text = match.groups()
            yield (field if field.startswith("spec.") else f"{path}.{field}"), text


def _format_changes(path: str, changes: Mapping[str, str]) -> str:
    return " and ".join(
        text if field == path else f"{field.removeprefix(f'{path}.')}: {text}" for field, text in changes.items()
    )


def parse_value(text: str) -> Any:
    """Return the value of a suggestion's text: JSON, a list or a map of plain words, or plain text."""
    try:
        return json.loads(text)
    except ValueError:
        pass
    items = text[1:-1].split(", ")
    match text[:1], text[-1:]:
        case "[", "]":
            return [parse_value(item) for item in items]
        case "{", "}" if all(": " in item for item in items):
            return {name: parse_value(value) for name, _, value in (item.partition(": ") for item in items)}
    return text


def _parse_path(document: Any, path: str) -> _Path:
    """Return the parts of a path. An existing key may contain dots and brackets itself, as label keys do."""
    target, rest, parts = document, path, []
    while rest:
        part: str | int
        index = _INDEX.match(rest)
        if index:
            part, rest = int(index[1]), rest[index.end() :]
        elif isinstance(target, dict) and rest in target:
            part, rest = rest, ""
        else:
            name = _NAME.match(rest)
            part, rest = (name[0], rest[name.end() :]) if name else (rest, "")
        parts.append(part)
        rest = rest.removeprefix(".")
        try:
            target = target[part]
        except (KeyError, IndexError, TypeError):
            target = None
    return tuple(parts)


def _set(document: Any, path: _Path, value: Any) -> None:
    *parents, last = path
    for part in parents:
        if isinstance(part, str) and document.get(part) is None:
            document[part] = {}
        document = document[part]
    document[last] = value


def _rename(document: Any, path: _Path, name: str) -> None:
    """Rename a field, or move it below its object: `adamw.beta1`. Raises `LookupError` if the new field exists."""
    *parents, last = path
    *objects, new = name.split(".")
    for part in parents:
        document = document[part]
    target = document
    for part in objects:
        target = target.setdefault(part, {})
    if target.get(new) is not None:
        raise LookupError(name)
    target[new] = document.pop(last)
