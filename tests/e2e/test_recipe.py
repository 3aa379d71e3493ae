"""The recipe: its text from source files, its jobs, and the curves that it compares."""

import ast

import pytest

from e2e.product import ROOT
from e2e.recipe.curves import Training, largest_difference, read_training
from e2e.recipe.text import ask_about, find_docstrings, read_sources
from trainingjob_operator.cli.documents import read_catalog
from trainingjob_operator.cli.validate_command import validate_files

SOURCE = '''
"""A module with a docstring that is long enough to be kept as a piece of prose."""

def add(a, b):
    """Return the sum of two numbers, which may be integers or floating-point numbers.

    More about it.
    """
    return a + b
'''


def test_text_contains_docstrings_once_and_questions_about_functions() -> None:
    seen: set[str] = set()
    texts = read_sources([SOURCE, SOURCE, "not Python 3: print 'x'"], seen)

    assert len(texts.code) == 3
    assert [text.split(" ", 3)[1] for text in texts.prose] == ["module", "the"]
    assert texts.chats == [
        [
            {"role": "user", "content": "What does add(a, b) do?"},
            {
                "role": "assistant",
                "content": "Return the sum of two numbers, which may be integers or floating-point numbers.",
            },
        ]
    ]
    assert read_sources([SOURCE], seen).prose == []


def test_long_answers_end() -> None:
    function = next(owner for owner, _ in find_docstrings(SOURCE) if isinstance(owner, ast.FunctionDef))
    assert len(ask_about(function, "word " * 1000)[1]["content"]) == 300


def test_jobs_are_valid(capsys: pytest.CaptureFixture[str]) -> None:
    files = [ROOT / f"e2e/recipe/{name}.yaml" for name in ("pretrain", "tune")]
    assert validate_files(files, read_catalog(None, None)) == 0, capsys.readouterr().out


def test_curves_are_those_of_the_committed_history() -> None:
    status = {
        "lineage": [{"generation": 1, "first": 1, "last": 2}, {"generation": 2, "first": 3}],
        "attempts": [{"generation": 1, "slices": 2}, {"generation": 2, "slices": 1}],
    }
    lines = [
        {"generation": 1, "step": 1, "loss": 3.0},
        {"generation": 1, "step": 2, "loss": 2.5},
        {"generation": 1, "step": 2, "evaluation": "held-out", "held_out_loss": 2.6},
        {"generation": 1, "step": 2, "evaluation": "other", "held_out_loss": 7.0},
        {"generation": 1, "step": 3, "loss": 9.0},
        {"generation": 1, "step": 3, "evaluation": "held-out", "held_out_loss": 9.0},
        {"generation": 2, "step": 3, "loss": 2.0},
    ]
    assert read_training(lines, status, ["held-out"]) == Training(
        {1: 3.0, 2: 2.5, 3: 2.0}, {"held-out": {2: 2.6}}, ((1, 2), (3, 1))
    )


def test_the_largest_difference_has_its_step() -> None:
    assert largest_difference({1: 1.0, 2: 2.0, 3: 3.0}, {1: 1.0, 2: 2.5, 3: 3.1}) == (0.5, 2)
    with pytest.raises(ValueError, match="steps that the other lacks"):
        largest_difference({1: 1.0}, {1: 1.0, 2: 2.0})
