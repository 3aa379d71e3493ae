"""A problem of a spec: where, what, and the way out. The unit of every answer to bad input.

The webhook, the condition on the object and the command line print the same text, made here once.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a spec, or wasteful in it.

    `path` is the field as a user writes it (`spec.model.numHeads`), `value` what stands there, `message` what must
    hold instead, `nearest` the legal values closest to it, best first (empty: there are none to compute).
    """

    path: str
    value: Any
    message: str
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the line a user reads."""
        text = f"{self.path}: {self.message}"
        if not self.nearest:
            return text
        label = "Nearest legal value" if len(self.nearest) == 1 else "Nearest legal values"
        return f"{text} {label}: {', '.join(self.nearest)}."


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without repetition, ordered by path and then by text."""
    unique = {(problem.path, problem.message): problem for problem in problems}
    return [unique[key] for key in sorted(unique)]


def summarise(name: str, problems: Sequence[Problem]) -> str:
    """Return all problems of one TrainingJob as the text that `kubectl apply` shows."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f'TrainingJob "{name}" has {count}:', *(f"  {problem}" for problem in problems)])
