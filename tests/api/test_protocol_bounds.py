"""Protocol models are bounded: each number, text, list and map has a limit."""

import pytest
from pydantic import BaseModel, ValidationError

from tests.support.protocol_schema import Node, Path, Schema
from trainingjob_api.drill import DrillRequest
from trainingjob_api.protocol import (
    MAX_MESSAGE,
    MAX_REPORTED,
    Answer,
    FailedSave,
    Failure,
    FailureReason,
    HostReport,
    Progress,
    Termination,
)
from trainingjob_api.world import MAX_COUNT

INBOUND: tuple[type[BaseModel], ...] = (HostReport, Answer, Termination, DrillRequest)


def find_missing(schema: Schema, node: Node) -> list[str]:
    """Return which bounds a value lacks."""
    is_fixed = "enum" in node or "const" in node
    match node.get("type"):
        case "integer" | "number":
            bounds = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
            return [names[0] for names in bounds if not node.keys() & set(names)]
        case "string":
            return [] if is_fixed or "maxLength" in node else ["maxLength"]
        case "array":
            return [] if "maxItems" in node else ["maxItems"]
        case "object" if "additionalProperties" in node and node["additionalProperties"] is not False:
            keys = schema.resolve(node.get("propertyNames", {}))
            limited = keys.keys() & {"enum", "maxLength"}
            return [*([] if limited else ["propertyNames"]), *([] if "maxProperties" in node else ["maxProperties"])]
    return []


FIELDS = [
    pytest.param(schema, node, id=".".join(map(str, (schema.title, *path))))
    for schema in map(Schema, INBOUND)
    for path, node in schema.walk()
    if path
]


@pytest.mark.parametrize(("schema", "node"), FIELDS)
def test_every_field_has_bounds(schema: Schema, node: Node) -> None:
    assert find_missing(schema, node) == []


NUMBERS = [
    pytest.param(schema, path, node, id=".".join(map(str, (schema.title, *path))))
    for schema in map(Schema, INBOUND)
    for path, node in schema.walk()
    if node.get("type") in ("integer", "number")
]


@pytest.mark.parametrize(("schema", "path", "node"), NUMBERS)
def test_numbers_fit_into_json(schema: Schema, path: Path, node: Node) -> None:
    bounds = [abs(node[key]) for key in node.keys() & {"minimum", "maximum", "exclusiveMaximum"}]

    assert max(bounds) <= (MAX_COUNT if node["type"] == "integer" else 1e39)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e40, -1e40])
@pytest.mark.parametrize("name", [name for name, field in Progress.model_fields.items() if "float" in str(field)])
def test_no_measure_is_other_than_finite(name: str, value: float) -> None:
    with pytest.raises(ValidationError):
        Progress.model_validate({"step": 1, name: {"key": value} if name == "evaluations" else value})


def test_long_texts_are_truncated_and_not_rejected() -> None:
    words = "x" * (MAX_MESSAGE + 1)

    reported = Failure(reason=FailureReason.CRASH, message=words, path=words, value="x" * MAX_MESSAGE)

    assert reported.message == reported.path == "x" * (MAX_MESSAGE - 1) + "…"
    assert reported.value == "x" * MAX_MESSAGE
    with pytest.raises(ValidationError):
        FailedSave.model_validate({"step": 1, "message": 5})


@pytest.mark.parametrize("field", ["generation", "first", "last"])
def test_a_span_that_a_host_reports_is_bounded_as_its_other_counts_are(field: str) -> None:
    schema = Schema(HostReport)
    report = {**schema.sample(), "missingLineage": [{"generation": 1, "first": 1, "last": 1, field: MAX_REPORTED}]}
    HostReport.model_validate(report)

    report["missingLineage"][0][field] += 1
    with pytest.raises(ValidationError, match="at most"):
        HostReport.model_validate(report)
