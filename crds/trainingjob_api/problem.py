"""A problem of a spec: where, what, and the way out. The unit of every answer to bad input.

The webhook, the condition on the object and the command line print the same text, made here once.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_NO_TEXT = re.compile(
    r"[-+]?(0b[01_]*|0x[0-9a-f_]*|\.?[0-9][0-9_]*(\.[0-9]*)?(e[-+]?[0-9]+)?|\.(inf|nan))"
    r"|true|false|null|yes|no|on|off|y|n|~|",
    re.IGNORECASE,
)
_PLAIN = re.compile(r"[\w/.][\w./:@%+=,-]*")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a spec, or wasteful in it.

    `path` is the field as a user writes it (`spec.model.numHeads`), `value` what stands there, `message` what must
    hold instead, `nearest` the legal values closest to it, best first (empty: there are none to compute).

    A program can follow `nearest` too: it is a value in YAML for the path, perhaps with a remark in parentheses, or
    changes of other fields, `fsdp: 4 and data: 1`, or both, `1 and spec.model.numKvHeads: 1`. Fields that begin with
    `spec.` are paths, others stand below the problem's own. Of a field that nobody knows, it is the right name.
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


def as_text(value: str) -> str:
    """Return a text as a suggestion shows it: in quotes where YAML would else read something else."""
    is_plain = _PLAIN.fullmatch(value) and not _NO_TEXT.fullmatch(value) and not value.endswith(":")
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without repetition, ordered by path and then by text."""
    unique = {(problem.path, problem.message): problem for problem in problems}
    return [unique[key] for key in sorted(unique)]


def summarise(name: str, problems: Sequence[Problem]) -> str:
    """Return all problems of one TrainingJob as the text that `kubectl apply` shows."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f'TrainingJob "{name}" has {count}:', *(f"  {problem}" for problem in problems)])
