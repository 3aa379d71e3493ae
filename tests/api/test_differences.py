"""Differences of nested mappings."""

from typing import Any

import pytest

from trainingjob_api.differences import list_differences

CASES: dict[str, tuple[Any, Any, list[tuple[tuple[str, ...], Any, Any]]]] = {
    "equal": ({"a": {"b": [1]}}, {"a": {"b": [1]}}, []),
    "values, in the order of their names": (
        {"b": 1, "a": {"c": 1, "d": 2}},
        {"b": 2, "a": {"c": 1, "d": 3}},
        [(("a", "d"), 2, 3), (("b",), 1, 2)],
    ),
    "a list as one value": ({"a": [1, 2]}, {"a": [1, 3]}, [(("a",), [1, 2], [1, 3])]),
    "an object that one side lacks": ({}, {"a": {"b": {"c": 1}}}, [(("a", "b", "c"), None, 1)]),
    "an object in place of a number": ({"a": 1}, {"a": {"b": 2}}, [(("a",), 1, {"b": 2})]),
    "an empty object": ({}, {"a": {}}, [(("a",), None, {})]),
    "null, which is not set": ({"a": None}, {}, []),
    "nothing at all": (None, {"a": False}, [(("a",), None, False)]),
}


@pytest.mark.parametrize(("before", "after", "want"), CASES.values(), ids=CASES)
def test_each_field_that_differs_has_its_path_and_both_values(before: Any, after: Any, want: Any) -> None:
    assert [tuple(one) for one in list_differences(before, after)] == want
    assert [tuple(one) for one in list_differences(after, before)] == [(path, new, old) for path, old, new in want]


def test_a_path_leads_to_the_values() -> None:
    assert [one.path for one in list_differences({"a": 1}, {"a": 2}, "spec", "model")] == [("spec", "model", "a")]
