"""Builders: a small valid job, of which a test names only what it is about."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.validation.validate import ValidationResult, validate_job

type Raw = dict[str, Any]

SMALL: Raw = {
    "slices": {"accelerator": "cpu", "topology": "2x2", "count": 1},
    "model": {
        "vocabSize": 257,
        "embedDim": 64,
        "mlpDim": 192,
        "numLayers": 2,
        "numHeads": 4,
        "numKvHeads": 2,
        "headDim": 16,
    },
    "data": {"train": [{"name": "json", "path": "python:json", "pattern": "*.py"}]},
    "training": {"steps": 100, "globalBatchSize": 8, "sequenceLength": 64},
    "optimizer": {"learningRate": 0.001},
    "precision": {"compute": "float32"},
    "checkpoint": {"uri": "/shared/run", "save": {"everySteps": 10}},
    "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
}


def change(raw: Raw, changes: dict[str, Any]) -> Raw:
    """Return a spec with parts replaced by path, such as `training.steps`; None removes a part."""
    changed = copy.deepcopy(raw)
    for path, value in changes.items():
        *parents, last = path.split(".")
        place = changed
        for part in parents:
            place = place.setdefault(part, {})
        if value is None:
            place.pop(last, None)
        else:
            place[last] = value
    return changed


@pytest.fixture(scope="session")
def make_raw() -> Callable[..., Raw]:
    """Return a builder of raw specs."""
    return lambda changes: change(SMALL, changes)


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., TrainingJobSpec]:
    """Return a builder of parsed specs, which need not satisfy any rule."""
    return lambda changes: TrainingJobSpec.model_validate(change(SMALL, changes))


@pytest.fixture(scope="session")
def check() -> Callable[..., ValidationResult]:
    """Return the verdict on a small job with parts replaced."""
    return lambda changes, name="tiny": validate_job(name, change(SMALL, changes))
