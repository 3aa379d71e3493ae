"""Patterns of log lines: what they must have, and what makes a search slow."""

import pytest

from trainingjob_api.line_pattern import find_pattern_error

GOOD = (
    r"completed step: (?P<step>\d+), .*loss: (?P<loss>[0-9.]+)",
    r"saved checkpoint (?P<saved>\d+)",
    r"^\[(?P<step>[0-9]{1,9})\] (?:train|eval) []x+*]{2} \+ \\ (?P<loss>\S+?)$",
    r"step=(?P<step>\d+){",
)
BAD = {
    r"step (?P<step>\d+": "must be a regular expression: missing ), unterminated subpattern at position 5.",
    r"(?P<step>a{4294967296})": "must be a regular expression: the repetition number is too large.",
    r"[[a](?P<step>\d+)": (
        "must have a backslash before special characters of a set: possible nested set at position 1."
    ),
    r"step (\d+)": "must have a group `(?P<step>...)` or `(?P<saved>...)`.",
    r"loss (?P<loss>\d+)": "must have a group `(?P<step>...)` or `(?P<saved>...)`.",
    r"(?P<step>\d+) (?P<lr>\S+)": "must have only the groups step, loss, saved, not lr.",
    r"(?P<step>(\d+)*)": "must not repeat a group: repeat the characters in it.",
    r"(?P<step>\d)+": "must not repeat a group: repeat the characters in it.",
    r"(?P<step>\d)(a|aa){2,9}": "must not repeat a group: repeat the characters in it.",
    r"(?=x)(?P<step>\d+)": "must not have lookarounds, flags or back references.",
    r"(?i)(?P<step>\d+)": "must not have lookarounds, flags or back references.",
    r"(?P<step>\d+) \1": "must not have lookarounds, flags or back references.",
    r"(?P<step>\d+) (?P=step)": "must not have lookarounds, flags or back references.",
    r"(?P<step>\d+).*.*.*.*": "must have at most 4 repetitions (`*`, `+`, `{`), but has 5.",
}


@pytest.mark.parametrize("pattern", GOOD)
def test_a_good_pattern(pattern: str) -> None:
    assert find_pattern_error(pattern) == ""


@pytest.mark.parametrize(("pattern", "error"), BAD.items(), ids=BAD.keys())
def test_a_bad_pattern(pattern: str, error: str) -> None:
    assert find_pattern_error(pattern) == error
