"""`presets`: the table of published models, and the model section of one."""

import json
from types import SimpleNamespace

import pytest
import yaml

from tests.support.command_line import CliRunner
from trainingjob_api.presets.registry import PRESETS, UNSUPPORTED
from trainingjob_operator.cli.entry_point import app


def call(*args: str, **environment: str) -> SimpleNamespace:
    result = CliRunner().invoke(app, ["presets", *args], env=environment, catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def test_the_table_has_a_row_for_each_preset_and_the_models_that_are_none() -> None:
    result = call()
    lines = result.out.splitlines()

    assert (result.code, result.err) == (0, "")
    assert lines[0].split() == ["name", "parameters", "active", "layers", "width", "context", "source"]
    assert [line.split()[0] for line in lines[1 : len(PRESETS) + 1]] == list(PRESETS)
    assert [line.split()[0] for line in lines[-len(UNSUPPORTED) :]] == list(UNSUPPORTED)


def test_active_parameters_are_those_that_a_token_uses() -> None:
    row = next(line for line in call().out.splitlines() if line.startswith("mixtral-8x7b "))

    assert row.split()[1:8] == ["46.7", "B", "12.9", "B", "32", "4,096", "32,768"]


def test_a_terminal_gets_the_same_rows_with_style() -> None:
    result = call(FORCE_COLOR="1", COLUMNS="200")

    assert "\x1b[1mllama2-7b" in result.out
    assert [name for name in PRESETS if name not in result.out] == []


def test_one_preset_is_a_section_to_paste_into_a_job() -> None:
    result = call("qwen3-8b")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("# qwen3-8b: 8,190,735,360 parameters, up to 40,960 tokens\n# https://huggingface.co/")
    assert yaml.safe_load(result.out) == {"model": PRESETS["qwen3-8b"].model}


def test_a_note_is_a_comment() -> None:
    assert f"\n# {PRESETS['gemma3-4b'].note}\n" in call("gemma3-4b").out


@pytest.mark.parametrize(("output", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
def test_output_for_programs(output: str, load: type) -> None:
    listed, one = load(call("-o", output).out), load(call("gpt2", "-o", output).out)

    assert [preset["name"] for preset in listed["presets"]] == list(PRESETS)
    assert {entry["name"]: entry["missing"] for entry in listed["unsupported"]} == UNSUPPORTED
    assert one | {"model": PRESETS["gpt2"].model} == one
    assert (one["parameters"], one["activeParameters"], one["context"]) == (124_439_808, 124_439_808, 1024)


UNKNOWN = {
    "misspelt": ("qwen3-9b", "Nearest: qwen3-8b"),
    "another word": ("xyzzy", "`trainingjob presets` lists all."),
    "unsupported": ("qwen3-next-80b-a3b", "Missing: layers of linear attention (gated delta net)."),
}


@pytest.mark.parametrize(("name", "hint"), UNKNOWN.values(), ids=UNKNOWN.keys())
def test_an_unknown_name_is_answered_with_the_nearest_or_with_what_is_missing(name: str, hint: str) -> None:
    result = call(name)

    assert (result.code, result.out) == (2, "")
    assert hint in result.err
