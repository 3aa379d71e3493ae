"""A problem of a spec: the field, the error and a fix.

The webhook, the condition on the object and the command line print the same text, which is composed here.
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
    """One error or inefficiency in a spec.

    `path` is the field as users write it (`spec.model.numHeads`) and `value` its value. `message` states what must
    hold. `nearest` lists the nearest legal values, best first (empty: none can be computed).

    `nearest` is also machine-readable. An entry is a YAML value for the path, with an optional remark in parentheses,
    or changes of other fields, `fsdp: 4 and data: 1`, or both, `1 and spec.model.numKvHeads: 1`. Fields that begin with
    `spec.` are full paths; others are below the problem's path. For an unknown field, `nearest` is the correct name.
    """

    path: str
    value: Any
    message: str
    nearest: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the line that users read."""
        text = f"{self.path}: {self.message}"
        if not self.nearest:
            return text
        label = "Nearest legal value" if len(self.nearest) == 1 else "Nearest legal values"
        return f"{text} {label}: {', '.join(self.nearest)}."


def as_text(value: str) -> str:
    """Return a text as a suggestion shows it: in quotes where YAML would otherwise parse another type."""
    is_plain = _PLAIN.fullmatch(value) and not _NO_TEXT.fullmatch(value) and not value.endswith(":")
    return value if is_plain else json.dumps(value, ensure_ascii=False)


def in_order(problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems without duplicates, ordered by path and then by text."""
    unique = {(problem.path, problem.message): problem for problem in problems}
    return [unique[key] for key in sorted(unique)]


def summarise(name: str, problems: Sequence[Problem]) -> str:
    """Return all problems of one TrainingJob as the text that `kubectl apply` shows."""
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    return "\n".join([f'TrainingJob "{name}" has {count}:', *(f"  {problem}" for problem in problems)])
