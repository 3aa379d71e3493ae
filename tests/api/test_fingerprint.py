"""The fingerprint of a network: what changes it, and how two model sections differ."""

from typing import Any

import pytest

from trainingjob_api.differences import describe_differences
from trainingjob_api.network.fingerprint import describe_model, fingerprint, fingerprint_function
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.model import Model

DIMS: dict[str, Any] = {"vocabSize": 512, "embedDim": 64, "mlpDim": 128, "numLayers": 2, "numHeads": 4}
EXPERTS = {"count": 4, "perToken": 2}


def model(**fields: Any) -> Model:
    return Model.model_validate(DIMS | fields)


def test_a_written_default_changes_no_fingerprint() -> None:
    written = model(headDim=16, rope={"theta": 10000.0}, norm={"type": "rms"})

    assert fingerprint(resolve(written)) == fingerprint(resolve(model()))
    assert fingerprint_function(written) == fingerprint_function(model())


@pytest.mark.parametrize(
    "fields",
    [
        {"rope": {"theta": 500000.0}},
        {"attention": {"window": 16}},
        {"numLayers": 4},
        {"tieEmbeddings": True},
        {"logits": {"softCap": 30.0}},
        {"norm": {"epsilon": 1e-4}},
        {"experts": EXPERTS},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_every_option_of_the_function_changes_both_fingerprints(fields: dict[str, Any]) -> None:
    assert fingerprint(resolve(model(**fields))) != fingerprint(resolve(model()))
    assert fingerprint_function(model(**fields)) != fingerprint_function(model())


@pytest.mark.parametrize(
    "fields",
    [
        {"init": {"std": 0.01}},
        {"dropout": {"residual": 0.1}},
        {"dropout": {"embedding": 0.1}},
        {"experts": EXPERTS | {"balance": {"lossWeight": 0.1}}},
    ],
    ids=str,
)
def test_initial_values_dropout_and_balancing_are_no_part_of_the_function(fields: dict[str, Any]) -> None:
    plain = model(experts=EXPERTS) if "experts" in fields else model()

    assert fingerprint(resolve(model(**fields))) != fingerprint(resolve(plain))
    assert fingerprint_function(model(**fields)) == fingerprint_function(plain)


def test_dropless_experts_compute_what_those_with_a_slot_for_each_token_do() -> None:
    slots, dropless, narrow = (
        fingerprint_function(model(experts=EXPERTS | changes))
        for changes in ({"capacityFactor": 2.0}, {"dispatch": "dropless"}, {"capacityFactor": 1.25})
    )

    assert slots == dropless != narrow
    assert fingerprint(resolve(model(experts=EXPERTS | {"capacityFactor": 2.0}))) != fingerprint(
        resolve(model(experts=EXPERTS | {"dispatch": "dropless"}))
    )


def test_differences_name_field_and_values() -> None:
    saved = describe_model(model(rope={"theta": 500000.0}, tieEmbeddings=True))
    current = describe_model(model(attention={"window": 16}))

    assert describe_differences(saved, current) == (
        "attention.window was unset, not 16",
        "rope.theta was 500000.0, not unset",
        "tieEmbeddings was true, not unset",
    )
    assert describe_differences(saved, saved) == ()


def test_many_differences_are_counted() -> None:
    differences = describe_differences({}, dict.fromkeys("abcdefg", 1))

    assert len(differences) == 6
    assert differences[-1] == "and 2 more fields differ"
