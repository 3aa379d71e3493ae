"""The public fields: held by a golden file of each version, with the changes that users would feel named."""

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.compatibility import Facts, find_breaks, find_rejected_writes, list_facts, read, write
from trainingjob_api.spec.job import VERSION

GOLDEN = Path(__file__).parents[1] / "golden/api" / f"{VERSION}.fields"


def test_the_public_fields_change_only_on_purpose(golden: Callable[[Path, str], None]) -> None:
    before = read(GOLDEN.read_text()) if GOLDEN.exists() else {}
    breaks = find_breaks(before, list_facts())
    if breaks and os.environ.get("GOLDEN") != "write":
        reported = "\n  ".join(breaks)
        way_out = "docs/api-versions.md says when that may be. Where it may: make golden"
        pytest.fail(f"jobs that were written before would break:\n  {reported}\n{way_out}", pytrace=False)

    golden(GOLDEN, write(list_facts()))


def test_the_file_holds_every_fact() -> None:
    assert read(write(list_facts())) == list_facts()


def test_facts_are_those_of_the_schema() -> None:
    facts = list_facts()

    assert facts["spec.training.steps"] == {"type": "integer", "minimum": 1, "maximum": 100_000_000}
    assert facts["spec.training.sequenceLength"]["required"] is True
    assert facts["spec.training.seed"]["fixed"] is True
    assert facts["spec.optimizer.adamw.beta1"]["exclusiveMaximum"] is True
    assert facts["spec.data.train[].name"]["fixed"] is True
    assert facts["spec.elastic.maxRestarts"] == {"type": "integer", "default": 10, "minimum": 0, "maximum": 10_000}
    assert facts["spec.suspend"] == {"type": "boolean", "default": False}
    assert facts["spec.runtime.imagePullSecrets[]"]["maxLength"] == 253


def test_the_api_server_takes_and_keeps_the_status_of_an_operator_before_0_2() -> None:
    written = read(GOLDEN.with_name("status-before-0.1.fields").read_text())
    status = {path: facts for path, facts in list_facts().items() if path.startswith("status")}

    assert find_rejected_writes(written, status) == []


def with_facts(path: str, **changes: Any) -> Callable[[dict[str, Facts]], None]:
    """Return a change of the fields; a value of None removes a fact."""

    def change(rows: dict[str, Facts]) -> None:
        facts = rows.setdefault(path, {}) | {key.replace("_", "-"): value for key, value in changes.items()}
        rows[path] = {key: value for key, value in facts.items() if value is not None}

    return change


def without(path: str) -> Callable[[dict[str, Facts]], None]:
    return lambda rows: rows.pop(path) and None


COMPATIBLE = {
    "nothing": lambda rows: None,
    "a new field that may be left out": with_facts("spec.training.new", type="integer", default=1),
    "a new section whose own fields are required": lambda rows: rows.update(
        {"spec.new": {"type": "object"}, "spec.new.field": {"type": "string", "required": True}}
    ),
    "a field that may be left out now": with_facts("spec.slices.topology", required=None),
    "a field that may change now": with_facts("spec.metrics.everySteps", fixed=None),
    "a larger maximum": with_facts("spec.slices.max", maximum=512),
    "no maximum": with_facts("spec.slices.max", maximum=None),
    "a smaller minimum": with_facts("spec.training.steps", minimum=0),
    "one more choice": with_facts("spec.optimizer.type", enum=["adamw", "adafactor", "lion", "muon", "sgd", "another"]),
    "any choice": with_facts("spec.optimizer.type", enum=None),
    "a bound that is itself allowed now": with_facts("spec.optimizer.adamw.beta1", exclusiveMaximum=None),
    "a new field of the status": with_facts("status.progress.new", type="number"),
    "a new field in the default of a section": with_facts("spec.checkpoint.keep", default={"last": 3, "everyHours": 6}),
    "a shorter text of the status": with_facts("status.phase", maxLength=16),
}


@pytest.mark.parametrize("change", COMPATIBLE.values(), ids=COMPATIBLE.keys())
def test_compatible_changes(change: Callable[[dict[str, Facts]], None]) -> None:
    after = copy.deepcopy(list_facts())
    change(after)

    assert find_breaks(list_facts(), after) == []


BREAKING = {
    "spec.memory.remat: removed": without("spec.memory.remat"),
    "spec.training.new: new and required": with_facts("spec.training.new", type="integer", required=True),
    "spec.slices.count: must be written now": with_facts("spec.slices.count", required=True),
    "spec.suspend: can no longer change while a job lives": with_facts("spec.suspend", fixed=True),
    "spec.training.seed: another type": with_facts("spec.training.seed", type="string"),
    "spec.training.seed: another default: the same file then means something else": with_facts(
        "spec.training.seed", default=1
    ),
    "spec.checkpoint.keep: another default: the same file then means something else": with_facts(
        "spec.checkpoint.keep", default={"last": 2}
    ),
    "spec.slices.max: narrower: maximum 128, was 256": with_facts("spec.slices.max", maximum=128),
    "spec.training.steps: narrower: minimum 2, was 1": with_facts("spec.training.steps", minimum=2),
    "spec.suspend: narrower: maxLength 3, was unbounded": with_facts("spec.suspend", maxLength=3),
    "spec.optimizer.adamw.beta1: narrower: exclusiveMinimum": with_facts(
        "spec.optimizer.adamw.beta1", exclusiveMinimum=True
    ),
    "spec.memory.remat: fewer choices: full": with_facts(
        "spec.memory.remat", enum=["none", "minimal", "saveMatmuls", "saveAttention", "custom"]
    ),
    "spec.data.train[].name: fewer choices: they were free": with_facts("spec.data.train[].name", enum=["web"]),
    "spec.data.train[].path: another pattern: what matched may no longer": with_facts(
        "spec.data.train[].path", pattern="^/"
    ),
    "status.progress.loss: removed": without("status.progress.loss"),
    "status.progress.loss: another type": with_facts("status.progress.loss", type="string"),
}


@pytest.mark.parametrize(("reported", "change"), BREAKING.items(), ids=BREAKING.keys())
def test_breaking_changes(reported: str, change: Callable[[dict[str, Facts]], None]) -> None:
    after = copy.deepcopy(list_facts())
    change(after)

    assert find_breaks(list_facts(), after) == [reported]
