"""The reference of fields: found by any name a user would try, and complete."""

import pytest

from trainingjob_api.fields import all_fields
from trainingjob_operator.core.validation.field_reference import (
    FieldReference,
    descendant_fields,
    find_field,
    list_fields,
    nearest_fields,
)


def field(path: str) -> FieldReference:
    found = find_field(path)
    assert found
    return found


def test_every_field_of_the_models_is_there() -> None:
    known = {one.names for one in list_fields()}

    assert {tuple(place) for place in all_fields()} | {()} == known


def test_every_field_has_a_description_and_its_value() -> None:
    dumb = [one.path for one in list_fields() if not (one.meaning and one.type)]

    assert dumb == []


FOUND: dict[str, tuple[str, str]] = {
    "the whole path": ("spec.training.steps", "spec.training.steps"),
    "without spec": ("training.steps", "spec.training.steps"),
    "the name alone": ("globalBatchSize", "spec.training.globalBatchSize"),
    "the end of a path": ("save.everySteps", "spec.checkpoint.save.everySteps"),
    "a section": ("data", "spec.data"),
    "an item of a list": ("spec.data.train[0].path", "spec.data.train[].path"),
    "any item": ("data.train[].path", "spec.data.train[].path"),
    "no item": ("tolerations.key", "spec.scheduling.tolerations[].key"),
    "the spec": ("spec", "spec"),
    "nothing": ("", "spec"),
}


@pytest.mark.parametrize(("text", "want"), FOUND.values(), ids=FOUND.keys())
def test_a_field_is_found(text: str, want: str) -> None:
    assert field(text).path == want


NEAR: dict[str, tuple[str, str]] = {
    "several have the name": ("everySteps", "spec.checkpoint.save.everySteps"),
    "another section": ("spec.training.warmUp", "spec.schedule.warmup"),
    "snake case": ("spec.training.global_batch_size", "spec.training.globalBatchSize"),
    "misspelt": ("elastic.growCooldwn", "spec.elastic.growCooldown"),
    "a misspelt section": ("spec.paralelism", "spec.parallelism"),
}


@pytest.mark.parametrize(("text", "want"), NEAR.values(), ids=NEAR.keys())
def test_the_nearest_field_is_named_first(text: str, want: str) -> None:
    assert find_field(text) is None
    assert nearest_fields(text)[0] == want


def test_a_name_like_no_other_has_none_near_it() -> None:
    assert (find_field("xyzzy"), nearest_fields("xyzzy")) == (None, ())


def test_a_number_has_bounds_unit_and_default() -> None:
    beta, length = field("optimizer.adamw.beta1"), field("training.sequenceLength")

    assert (beta.type, beta.unit, beta.allowed, beta.required, beta.default) == (
        "number",
        "",
        "at least 0, below 1",
        False,
        0.9,
    )
    assert (length.type, length.unit, length.allowed, length.required, length.default) == (
        "whole number",
        "tokens",
        "at least 2, at most 1048576",
        True,
        None,
    )
    assert field("optimizer.learningRate").allowed == "above 0, at most 10"


TYPES: dict[str, tuple[str, str]] = {
    "schedule.type": ("choice", "constant, linear, cosine, wsd, inverseSqrt, rex, polynomial"),
    "elastic.growCooldown": ("text", "a duration such as 90s, 5m or 1h30m"),
    "data.train": ("list of objects", "at least 1 item, at most 64 items"),
    "runtime.imagePullSecrets": ("list of text", "at most 8 items"),
    "scheduling.nodeSelector": ("map of text", "at most 32 items"),
    "runtime.resources.memory": ("quantity", "a quantity such as 500m, 4 or 16Gi"),
    "schedule.warmup": (
        "whole number or share",
        "a whole number of steps, or a share of the schedule from 0% to 99%",
    ),
    "evaluation.numBatches": ("whole number or text", "a whole number of batches, or `all`"),
    "tokenizer.endOfDocument": ("text", "at least 1 character, at most 64 characters"),
    "suspend": ("true or false", ""),
    "model": ("object", ""),
}


@pytest.mark.parametrize("path", TYPES)
def test_types_and_bounds_are_described(path: str) -> None:
    assert (field(path).type, field(path).allowed) == TYPES[path]


def test_reference_lists_the_rules_that_read_a_field() -> None:
    heads = field("model.numKvHeads")

    assert "`model.numKvHeads` must divide `model.numHeads`." in heads.rules
    even = "`model.headDim` must be even, because rotary position embeddings rotate pairs of features."
    assert even not in heads.rules
    assert even in field("model").rules
    assert "A vocabulary that the `tensor` degree does not divide is not sharded." not in heads.warnings
    rare = "`everySteps` of saves, metrics, statistics and evaluations should be at most `training.steps`."
    assert rare in field("training.steps").warnings


def test_reference_lists_the_rules_of_the_api_server_at_their_field() -> None:
    assert "must not be set with `type: byte`." in field("tokenizer.path").rules
    assert "must have exactly one of `value`, `secretKeyRef` and `configMapKeyRef`." in field("runtime.env").rules
    assert not any("cannot change" in rule for one in list_fields() for rule in one.rules)


def test_reference_lists_the_mutable_fields() -> None:
    assert field("model.embedDim").frozen.startswith("the checkpoints contain the state of this model.")
    assert field("elastic.heartbeatTimeout").frozen
    assert (field("elastic.maxRestarts").frozen, field("suspend").frozen, field("elastic").frozen) == ("", "", "")


def test_fields_below_are_all_of_them() -> None:
    assert [one.path for one in descendant_fields(field("checkpoint.keep"))] == [
        "spec.checkpoint.keep.last",
        "spec.checkpoint.keep.stages",
        "spec.checkpoint.keep.stages[].every",
        "spec.checkpoint.keep.stages[].until",
        "spec.checkpoint.keep.best",
        "spec.checkpoint.keep.best.evaluation",
        "spec.checkpoint.keep.best.count",
    ]
    assert len(descendant_fields(field("spec"))) == len(list_fields()) - 1
