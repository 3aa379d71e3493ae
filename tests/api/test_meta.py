"""Annotations of the spec's fields, and what is derived from them."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

import pytest
from pydantic.alias_generators import to_camel

from trainingjob_api.base import Strict
from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.fields import ITEM, SpecField, fields_of, find_spec_field
from trainingjob_api.live import LIVE_PATHS
from trainingjob_api.meta import Example, Immutable, Live, Unit
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.sample import SAMPLE, example_of
from trainingjob_api.schema import spec_schema
from trainingjob_api.spec.job import TrainingJobSpec


def walk(path: tuple[str, ...], model: type[Strict]) -> Iterator[tuple[tuple[str, ...], SpecField]]:
    for one in fields_of(model):
        here = (*path, one.name)
        yield here, one
        if one.model:
            yield from walk(here, one.model)


FIELDS = dict(walk((), TrainingJobSpec))
LEAVES = {path: one for path, one in FIELDS.items() if one.model is None}


def declarations(path: tuple[str, ...]) -> list[Live | Immutable]:
    """Return what a field and the objects around it declare about changes, the field first."""
    around = (FIELDS[path[:length]].mutability for length in range(len(path), 0, -1))
    return [one for one in around if one]


def test_every_field_states_whether_it_may_change() -> None:
    assert [path for path in LEAVES if not declarations(path)] == []


def test_no_field_repeats_what_its_object_declares() -> None:
    own = {path: one.mutability for path, one in FIELDS.items() if one.mutability}

    assert [path for path, declared in own.items() if [declared] == declarations(path[:-1])[:1]] == []


def test_the_immutable_fields_have_a_rule() -> None:
    fixed = {path for path in LEAVES if isinstance(declarations(path)[0], Immutable)}
    ruled = {
        tuple(name for name in place if name != ITEM)
        for place, rules in SPEC_RULES.items()
        if "self == oldSelf" in [rule["rule"] for rule in rules]
    }

    assert {path for path in LEAVES if any(path[: len(place)] == place for place in ruled)} == fixed


def test_a_world_contains_the_live_fields_that_trainers_read() -> None:
    declared = {path for path, one in FIELDS.items() if one.mutability == Live(in_world=True)}

    assert {tuple(map(to_camel, path)) for path in LIVE_PATHS.values()} == declared


def test_every_field_has_a_valid_example() -> None:
    assert [path for path, one in LEAVES.items() if one.example is None] == []
    assert parse_spec(SAMPLE).problems == ()


def test_a_field_without_an_example_is_a_mistake() -> None:
    class Nameless(Strict):
        level: int

    with pytest.raises(TypeError, match="the field level must declare an Example"):
        example_of(fields_of(Nameless)[0])


def test_every_number_has_a_unit_or_declares_none() -> None:
    schema = spec_schema()
    numbers = {path for path in LEAVES if is_number(schema, path)}

    assert {path for path in LEAVES if LEAVES[path].unit} == numbers


def is_number(node: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    for name in path:
        node = (node.get("items") or node)["properties"][name]
    node = node.get("additionalProperties") or node  # a map of numbers
    return node.get("type") in ("integer", "number") or "x-kubernetes-int-or-string" in node


def test_the_example_of_an_object_replaces_those_of_its_fields() -> None:
    class Inner(Strict):
        a: Annotated[int, Example(1)]
        b: Annotated[int, Example(2)]

    class Outer(Strict):
        plain: Inner
        other: Annotated[Inner, Example({"b": 3})]
        items: Annotated[tuple[Inner, ...], Example({"a": 4})]

    assert {one.name: example_of(one) for one in fields_of(Outer)} == {
        "plain": {"a": 1, "b": 2},
        "other": {"a": 1, "b": 3},
        "items": [{"a": 4, "b": 2}],
    }


@pytest.mark.parametrize("path", [("nothing",), ("training", "steps", "more")])
def test_there_is_no_field(path: tuple[str, ...]) -> None:
    assert find_spec_field(path) is None


def test_a_list_item_has_the_fields_of_its_list() -> None:
    found = find_spec_field(("evaluation", 0, "everySteps"))

    assert found
    assert found.unit == Unit("optimizer steps")
