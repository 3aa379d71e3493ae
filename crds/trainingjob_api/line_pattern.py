"""Patterns of log lines: regular expressions whose search takes little time, whatever the line.

Python's engine backtracks. Its time is exponential only with repeated groups, and grows with each further repetition.
So groups must not be repeated, repetitions are few, and only the beginning of a line is searched.
"""

import re
import warnings

GROUPS = ("step", "loss", "saved")
"""Named groups of a pattern: at least `step` or `saved`."""
MAX_SEARCHED = 512
"""Number of characters of a line that are searched."""
MAX_REPETITIONS = 4
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P<[a-z]+>|\(\?:|\(\?|[(]|[)]|[*+?]\??|\{\d+,?\d*\}\??|.", re.DOTALL
)


def find_pattern_error(pattern: str) -> str:
    """Return what is wrong with a pattern, as a sentence that begins with `must`; empty: it can be used."""
    try:
        with warnings.catch_warnings(category=FutureWarning, action="error"):
            groups = re.compile(pattern).groupindex
    except (re.error, OverflowError, RecursionError) as error:
        return f"must be a regular expression: {error}."
    except FutureWarning as warning:
        return f"must have a backslash before special characters of a set: {str(warning).lower()}."
    if not {"step", "saved"} & groups.keys():
        return "must have a group `(?P<step>...)` or `(?P<saved>...)`."
    if unknown := [name for name in groups if name not in GROUPS]:
        return f"must have only the groups {', '.join(GROUPS)}, not {unknown[0]}."
    return _find_slow_part(_TOKEN.findall(pattern))


def _find_slow_part(parts: list[str]) -> str:
    """Return why a search may take long; empty: it cannot."""
    repetitions = 0
    for before, part in zip(["", *parts], parts, strict=False):
        if part == "(?" or re.fullmatch(r"\\[1-9]", part):
            return "must not have lookarounds, flags or back references."
        is_repetition = part[0] in "*+" or (part[0] == "{" and len(part) > 1)
        if is_repetition and before == ")":
            return "must not repeat a group: repeat the characters in it."
        repetitions += is_repetition
    if repetitions > MAX_REPETITIONS:
        return f"must have at most {MAX_REPETITIONS} repetitions (`*`, `+`, `{{`), but has {repetitions}."
    return ""
