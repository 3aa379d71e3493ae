"""A suggestion is shown where it leads to a document without that problem, and without a new one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.builders import spec_manifest
from tests.support.cases import sample
from tests.support.patience import at_once
from trainingjob_api.problem import Problem
from trainingjob_operator.core.planner import strategy
from trainingjob_operator.core.planner.size_planner import SizePlanner
from trainingjob_operator.core.validation.suggestions import (
    MAX_CHECKED_PROBLEMS,
    MAX_CHECKS,
    MAX_PLANS,
    SuggestionFilter,
    apply_suggestion,
)
from trainingjob_operator.core.validation.validate import validate_job

type Document = dict[str, Any]
type Judge = Callable[[Document], list[Problem]]

PATH = "spec.a"
DOCUMENT: Document = {"spec": {"a": 0, "list": [{"x": 1}], "labels": {"k.io/b[0]": 1}}}


def problem(message: str = "must be another.", path: str = PATH, *nearest: str) -> Problem:
    return Problem(path, 0, message, nearest)


def at(path: str, *nearest: str) -> Problem:
    return problem("must be another.", path, *nearest)


def shown(judge: Judge, *reported: Problem) -> list[tuple[str, ...]]:
    return [one.nearest for one in SuggestionFilter(DOCUMENT, reported, judge).keep_legal_suggestions(reported)]


def test_legal_values_are_shown() -> None:
    assert shown(lambda _: [], at(PATH, "1", "2")) == [("1", "2")]


def test_a_value_that_leaves_the_problem_is_not_shown() -> None:
    reported = at(PATH, "1", "2")

    assert shown(lambda changed: [reported] if changed["spec"]["a"] == 1 else [], reported) == [("2",)]


def test_a_value_that_brings_a_new_problem_is_not_shown() -> None:
    assert shown(lambda _: [problem("is new.", "spec.b")], at(PATH, "1")) == [()]


def test_a_value_that_is_wrong_in_another_way_is_not_shown() -> None:
    assert shown(lambda _: [problem("is too large.")], at(PATH, "1")) == [()]


def test_problems_that_were_there_before_do_not_count() -> None:
    other = problem("is wrong.", "spec.b")

    assert shown(lambda _: [other], at(PATH, "1"), other) == [("1",), ()]


def test_the_legal_value_near_an_illegal_one_is_shown() -> None:
    def judge(changed: Document) -> list[Problem]:
        return [] if changed["spec"]["a"] == 4 else [problem("must be even.", PATH, "4")]

    assert shown(judge, at(PATH, "3")) == [("4",)]


def test_suggestion_contains_the_fields_that_its_value_requires() -> None:
    def judge(changed: Document) -> list[Problem]:
        return [] if changed["spec"].get("b") == 2 else [problem("must be 2.", "spec.b", "2")]

    assert shown(judge, at(PATH, "1", "5")) == [("1 and spec.b: 2",)]


def test_required_fields_below_the_problem_are_named() -> None:
    def judge(changed: Document) -> list[Problem]:
        return [] if changed["spec"]["a"].get("y") == 2 else [problem("must be 2.", "spec.a.y", "2")]

    document = {"spec": {"a": {}}}
    reported = [at(PATH, "x: 1")]

    assert SuggestionFilter(document, reported, judge).keep_legal_suggestions(reported)[0].nearest == ("x: 1 and y: 2",)


def test_changes_without_end_are_not_shown() -> None:
    def judge(changed: Document) -> list[Problem]:
        return [problem("must be one more.", "spec.b", str(changed["spec"].get("b", 0) + 1))]

    assert shown(judge, at(PATH, "1")) == [()]


def test_a_field_that_cannot_be_reached_has_no_suggestion() -> None:
    reported = [at("spec.a.b.c", "1"), at("spec.list[7].x", "1"), at("spec.list.x", "1")]

    assert shown(lambda _: [], *reported) == [(), (), ()]


def test_misspelt_field_is_shown_first() -> None:
    reported = Problem(PATH, "My Name", "is not a name.", ("my-name",))

    assert shown(lambda _: [problem("is new.", "spec.b")], reported) == [("my-name",)]
    assert shown(lambda _: [problem("is taken.")], reported) == [()]


UNKNOWN = Problem("spec.list[0].x", 1, "x is not a field of spec.list[0].", ("y",))


def test_a_name_is_shown_where_what_it_holds_was_not_judged_before() -> None:
    assert shown(lambda _: [problem("is new.", "spec.list[0].y.z")], UNKNOWN) == [("y",)]
    assert shown(lambda _: [problem("is not text.", "spec.list[0].y")], UNKNOWN) == [()]


def test_a_name_is_not_suggested_where_its_field_is_there() -> None:
    document = {"spec": {"data": {"train": [{"z": 1, "name": "a"}]}}}
    reported = [Problem("spec.data.train[0].z", 1, "z is not a field of spec.data.train[0].", ("name",))]
    (kept,) = SuggestionFilter(document, reported, lambda _: []).keep_legal_suggestions(reported)

    assert kept.nearest == ()
    assert kept.message.endswith(
        "train[0]. It has name, format, path, huggingFace, pattern, exclude, column, messages, tools, prompt, "
        "completion, chosen, rejected, onBadRecord, tokens, synthetic, weight."
    )


CHANGES: dict[str, tuple[str, str, tuple[Any, ...], Any]] = {
    "a number": (PATH, "7", ("a",), 7),
    "text in quotes": (PATH, '"7"', ("a",), "7"),
    "a remark": (PATH, '"7" (seven)', ("a",), "7"),
    "a list of words": (PATH, "[b, c]", ("a",), ["b", "c"]),
    "a map of words": (PATH, "{fsdp: 2, tensor: x}", ("a",), {"fsdp": 2, "tensor": "x"}),
    "what is no map": (PATH, "{fsdp}", ("a",), "{fsdp}"),
    "a list in JSON": (PATH, '[{"b": 1}]', ("a",), [{"b": 1}]),
    "an item": ("spec.list[0].x", "word", ("list", 0, "x"), "word"),
    "a new section": ("spec.new.field", "1", ("new", "field"), 1),
    "a key with dots and brackets": ("spec.labels.k.io/b[0]", "2", ("labels", "k.io/b[0]"), 2),
}


@pytest.mark.parametrize(("path", "text", "place", "want"), CHANGES.values(), ids=CHANGES.keys())
def test_a_suggestion_is_followed(path: str, text: str, place: tuple[Any, ...], want: Any) -> None:
    before = copy.deepcopy(DOCUMENT)
    changed: Any = apply_suggestion(DOCUMENT, at(path, text), text)

    assert changed is not None
    value = changed["spec"]
    for part in place:
        value = value[part]
    assert value == want
    assert before == DOCUMENT


def test_one_validation_is_enough_for_what_the_budget_does_not_reach() -> None:
    reported = [at(f"spec.f{number}", "1") for number in range(60)]
    judged: list[Document] = []

    kept = SuggestionFilter(DOCUMENT, reported, lambda changed: judged.append(changed) or []).keep_legal_suggestions(
        reported
    )  # type: ignore[func-returns-value]

    assert [one.nearest for one in kept] == [("1",)] * 60
    assert len(judged) == MAX_CHECKED_PROBLEMS // 60 < MAX_CHECKS


@pytest.mark.parametrize("left", [at("spec.f59", "1"), at("spec.new", "1")], ids=["it stays", "a new one"])
def test_unchecked_suggestions_are_omitted_if_not_all_are_legal(left: Problem) -> None:
    reported = [at(f"spec.f{number}", "1") for number in range(60)]
    kept = SuggestionFilter(
        DOCUMENT, reported, lambda changed: [left] if "f59" in changed["spec"] else []
    ).keep_legal_suggestions(reported)

    assert [one.nearest for one in kept[10:]] == [()] * 50


def test_conflicting_suggestions_are_omitted() -> None:
    reported = [at(f"spec.a.b{number}", "1") for number in range(60)]

    assert {
        one.nearest for one in SuggestionFilter(DOCUMENT, reported, lambda _: []).keep_legal_suggestions(reported)
    } == {()}


def endless() -> Document:
    document: Document = {"spec": {}}
    document["spec"]["self"] = document
    return document


def deep(levels: int) -> Document:
    document: Document = {}
    for _ in range(levels):
        document = {"spec": document}
    return document


LARGE: dict[str, Document] = {"endless": endless(), "deep": deep(10_000), "two megabytes": {"spec": {"x": "x" * 2**21}}}


@pytest.mark.parametrize("document", LARGE.values(), ids=LARGE.keys())
def test_nothing_is_validated_of_a_document_that_is_too_large(document: Document) -> None:
    reported = [at("spec.a", "1")]

    with at_once():
        assert SuggestionFilter(document, reported, lambda _: []).keep_legal_suggestions(reported)[0].nearest == ()


def test_so_many_problems_that_they_are_no_slip_have_no_suggestions() -> None:
    spec = spec_manifest(
        evaluation=[{"name": f"A{number}", "path": "python:", "everySteps": 0} for number in range(40)]
    )

    problems = validate_job("demo", spec).problems

    assert len(problems) == 64
    assert {problem.nearest for problem in problems} == {()}


def test_problems_without_suggestions_need_no_budget() -> None:
    reported = [at(f"spec.f{number}", *([str(number)] if number % 2 else [])) for number in range(60)]

    assert [
        one.nearest for one in SuggestionFilter(DOCUMENT, reported, lambda _: []).keep_legal_suggestions(reported)
    ] == [one.nearest for one in reported]


def test_after_too_many_planned_sizes_only_one_validation_is_left() -> None:
    reported = [at(f"spec.f{number}", "1", "2") for number in range(10)]
    judged: list[Document] = []

    def judge(changed: Document) -> list[Problem]:
        judged.append(changed)
        return []

    kept = SuggestionFilter(
        DOCUMENT, reported, judge, lambda: len(judged) * (MAX_PLANS // 3 + 1)
    ).keep_legal_suggestions(reported)

    assert len(judged) == 4
    assert [one.nearest for one in kept] == [("1",)] * 10, "the rest is validated together"


def test_nothing_is_validated_where_nothing_is_suggested() -> None:
    judged: list[Document] = []
    reported = [at("spec.a")]

    SuggestionFilter(DOCUMENT, [], lambda changed: judged.append(changed) or []).keep_legal_suggestions([])  # type: ignore[func-returns-value]
    SuggestionFilter(DOCUMENT, reported, lambda changed: judged.append(changed) or []).keep_legal_suggestions(reported)  # type: ignore[func-returns-value]

    assert judged == []


def plan_costly(**model: Any) -> tuple[tuple[Problem, ...], int]:
    """Return the problems of a job whose mesh is costly to choose, and the number of sizes planned for them."""
    sizes = {"vocabSize": 257, "embedDim": 16384, "mlpDim": 768, "numLayers": 60, "numHeads": 128, "headDim": 128}
    spec = spec_manifest(
        slices={"accelerator": "tpu-v5p", "topology": "16x16x24", "min": 1, "max": 2},
        model=sizes | {"numKvHeads": 64} | model,
        training={"steps": 100, "globalBatchSize": 1048576, "sequenceLength": 131072},
        parallelism={"strategy": "auto"},
    )
    num_plans = 0
    real = SizePlanner._try

    def plan(planner: SizePlanner, num_slices: int) -> Any:
        nonlocal num_plans
        num_plans += 1
        return real(planner, num_slices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SizePlanner, "_try", plan)
        return validate_job("demo", spec).problems, num_plans


COSTLY: dict[str, dict[str, Any]] = {
    "one mistake": {"numKvHeads": 48},
    "two mistakes": {"numKvHeads": 48, "headDim": 127},
    "experts": {"experts": {"count": 12, "perToken": 13, "groupLength": 1000, "capacityFactor": 0.1}},
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", sample([(name,) for name in COSTLY], every=3))
def test_suggestions_for_a_costly_job_plan_few_sizes_and_do_not_depend_on_the_cache(name: str) -> None:
    model = COSTLY[name]
    strategy._run_search.cache_clear()

    problems, num_plans = plan_costly(**model)
    again, num_cached = plan_costly(**model)

    assert num_plans <= 3 * MAX_PLANS
    assert num_cached < num_plans
    assert again == problems
    assert all(one.nearest for one in problems)
