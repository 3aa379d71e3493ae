"""The table of mutations fits the current code."""

from collections import Counter
from pathlib import Path

import pytest

from tests.mutation_tables.guarantees import GUARANTEES, Guarantee
from tests.mutation_tables.mutation import Mutation
from tests.mutation_tables.tables import MUTATIONS
from tests.mutations import ROOT, copy_repository, find_stale, survives


def test_every_row_names_a_line_that_is_there_once() -> None:
    assert find_stale(MUTATIONS) == []


def test_names_are_unique_and_tests_exist() -> None:
    assert [name for name, number in Counter(row.name for row in MUTATIONS).items() if number > 1] == []
    assert [test for row in MUTATIONS for test in row.tests if not (ROOT / test.partition("::")[0]).exists()] == []


def test_there_are_thirty_guarantees() -> None:
    assert len({one.statement for one in GUARANTEES}) == 30
    assert all(one.tests and one.mutations for one in GUARANTEES)


@pytest.mark.parametrize("guarantee", GUARANTEES, ids=[one.statement for one in GUARANTEES])
def test_each_guarantee_has_tests_and_a_mutation_that_they_kill(guarantee: Guarantee) -> None:
    rows = {row.name: row for row in MUTATIONS}

    for path, _, name in (test.partition("::") for test in guarantee.tests):
        assert f"def {name}(" in (ROOT / path).read_text()
    for mutation in guarantee.mutations:
        killers = {*guarantee.tests, *(test.partition("::")[0] for test in guarantee.tests)}
        assert killers.intersection(rows[mutation].tests), f"the tests of '{mutation}' are those of no guarantee"


EXAMPLE = "def double(x: int) -> int:\n    return x * 2\n"
TEST = "from sample import double\n\n\ndef test_it() -> None:\n    assert double(2) == 4\n"
ROWS = {
    "noticed": ("x * 3", False),
    "equivalent": ("x + x", True),
    "ends the process": ("__import__('os').abort()", False),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("new", "want"), ROWS.values(), ids=ROWS.keys())
def test_a_row_is_tried_in_the_copy_alone(new: str, want: bool, tmp_path: Path) -> None:
    (tmp_path / "operator").mkdir()
    (tmp_path / "operator/sample.py").write_text(EXAMPLE)
    (tmp_path / "test_sample.py").write_text(TEST)
    row = Mutation("example", "operator/sample.py", "x * 2", new, ("test_sample.py",))

    assert survives(row, tmp_path) is want
    assert (tmp_path / "operator/sample.py").read_text() == EXAMPLE


@pytest.mark.thorough
def test_a_row_whose_tests_cannot_run_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(EXAMPLE)

    with pytest.raises(SystemExit, match="cannot run"):
        survives(Mutation("example", "sample.py", "x * 2", "x", ("test_missing.py",)), tmp_path)


def test_the_copy_has_the_code_and_the_tests(tmp_path: Path) -> None:
    copy_repository(tmp_path)

    assert all((tmp_path / row.file).read_bytes() == (ROOT / row.file).read_bytes() for row in MUTATIONS)
