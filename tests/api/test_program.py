"""A spec with `program`: the sections of the trainer are absent, and stay so in JSON."""

from typing import Any

import pytest

from trainingjob_api.cel import SPEC_RULES
from trainingjob_api.parse.parser import parse_spec
from trainingjob_api.schema import spec_schema
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.replaced_sections import REPLACED_SECTIONS, TRAINER_SECTIONS

PROGRAM: dict[str, Any] = {
    "slices": {"accelerator": "cpu", "topology": "1x2", "count": 1},
    "program": {"command": ["python", "train.py"]},
    "checkpoint": {"uri": "/shared/run"},
}


def test_the_sections_of_the_trainer_stay_absent() -> None:
    parsed = parse_spec(PROGRAM)
    assert parsed.spec
    written = parsed.spec.model_dump(mode="json", by_alias=True)

    assert parsed.problems == ()
    assert REPLACED_SECTIONS.keys().isdisjoint(written)
    assert TrainingJobSpec.model_validate(written) == parsed.spec


@pytest.mark.parametrize("name", TRAINER_SECTIONS)
def test_no_rule_reads_a_section_of_the_trainer(name: str) -> None:
    assert not parse_spec(PROGRAM).is_as_written((name,))


@pytest.mark.parametrize("name", REPLACED_SECTIONS)
def test_a_job_without_a_command_must_have_the_sections(name: str) -> None:
    without = {key: value for key, value in PROGRAM.items() if key != "program"}

    for changes in ({}, {"program": {"entrypoint": "losses:customize"}}):
        assert f"spec.{name}" in {problem.path for problem in parse_spec(without | changes).problems}
    assert f"has(self.program) && !has(self.program.entrypoint) || has(self.{name})" in [
        rule["rule"] for rule in SPEC_RULES[()]
    ]
    assert "default" not in spec_schema()["properties"][name]


@pytest.mark.parametrize("program", [None, 3, "train", [], {"entrypoint": 3}, {"entrypoint": {}}, {"config": 3}])
def test_a_section_of_any_form_is_a_problem_and_no_error(program: object) -> None:
    assert parse_spec(PROGRAM | {"program": program}).problems
