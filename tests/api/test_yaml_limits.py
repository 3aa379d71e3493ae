"""YAML that is rejected before its values are constructed."""

from typing import Any

import pytest
import yaml

from trainingjob_api.yaml_limits import MAX_BYTES, MAX_DEPTH, YAML_ERRORS, BoundedLoader


def nest(kind: str, times: int, each: int) -> str:
    """Return anchors, each of which refers to several of the one before it."""
    forms = {"lists": "[{}]", "maps": "{{{}}}", "merges": "{{<<: [{}]}}"}
    lines = [f"a0: &a0 {forms[kind].format('x: 1') if kind != 'lists' else '[x]'}".replace("<<: [x: 1]", "x: 1")]
    for level in range(1, times + 1):
        aliases = [f"*a{level - 1}"] * each
        inner = ", ".join(f"k{n}: {one}" for n, one in enumerate(aliases)) if kind == "maps" else ", ".join(aliases)
        lines.append(f"a{level}: &a{level} {forms[kind].format(inner)}")
    return "\n".join(lines)


REFUSED = {
    "lists of aliases": (nest("lists", 9, 9), "must not be larger than 3 MiB"),
    "maps of aliases": (nest("maps", 9, 9), "must not be larger than 3 MiB"),
    "merges of aliases": (nest("merges", 9, 9), "must not be larger than 3 MiB"),
    "few levels of many aliases": (nest("lists", 2, 2000), "must not be larger than 3 MiB"),
    "a long text, often": (f"a: &a {'x' * 10_000}\nb: [{','.join(['*a'] * 400)}]", "must not be larger than 3 MiB"),
    "a chain of aliases": (nest("lists", MAX_DEPTH, 1), "levels deep"),
    "lists in lists": ("[" * 150 + "]" * 150, "levels deep"),
    "maps in maps": ("{a: " * 150 + "x" + "}" * 150, "levels deep"),
    "a list of itself": ("a: &a [*a]", "must not contain an alias of itself"),
    "a map of itself": ("&a {b: {c: *a}}", "must not contain an alias of itself"),
    "a key of itself": ("&a {? [*a] : b}", "must not contain an alias of itself"),
}


@pytest.mark.parametrize(("text", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_document_that_expands_beyond_the_limit_is_rejected(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError, match=words):
        yaml.load(text, Loader=BoundedLoader)  # noqa: S506  # a safe loader


LOADED: dict[str, tuple[str, Any]] = {
    "an alias": ("{a: &a [1], b: *a}", {"a": [1], "b": [1]}),
    "a merge": ("{a: &a {x: 1}, b: {<<: *a, y: 2}}", {"a": {"x": 1}, "b": {"x": 1, "y": 2}}),
    "as deep as may be": ("[" * MAX_DEPTH + "]" * MAX_DEPTH, None),
    "many aliases of little": (f"a: &a x\nb: [{','.join(['*a'] * 9000)}]", {"a": "x", "b": ["x"] * 9000}),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "want"), LOADED.values(), ids=LOADED.keys())
def test_an_ordinary_document(text: str, want: Any) -> None:
    loaded = yaml.load(text, Loader=BoundedLoader)  # noqa: S506  # a safe loader

    assert want is None or loaded == want


@pytest.mark.slow
def test_a_document_nearly_as_large_as_allowed_is_loaded() -> None:
    text = "x" * (MAX_BYTES - 100)

    assert yaml.load(f"a: {text}", Loader=BoundedLoader) == {"a": text}  # noqa: S506  # a safe loader


@pytest.mark.parametrize(
    "text", ["[" * 1500, "a: !!bool maybe", 'a: !!int ""', "a: !!timestamp x", "a: !!map x", "a: ["]
)
def test_every_error_of_a_loader_is_handled(text: str) -> None:
    with pytest.raises(YAML_ERRORS):
        yaml.load(text, Loader=BoundedLoader)  # noqa: S506  # a safe loader
