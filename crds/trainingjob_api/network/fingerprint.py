"""The fingerprint of a network, by which a plan, a preset and a checkpoint are compared."""

import hashlib
import json
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Balance
from trainingjob_api.spec.model import Dropout, Init, Model

DIGITS = 16


def fingerprint(network: Network) -> str:
    """Return a hash of all options and dimensions of a network, as 16 hexadecimal digits.

    Options with their defaults do not count. So an option that a newer version adds changes no fingerprint.
    """
    return hashlib.sha256(json.dumps(_describe(network), sort_keys=True).encode()).hexdigest()[:DIGITS]


def fingerprint_function(model: Model) -> str:
    """Return the fingerprint of what a model computes, without what matters for training alone.

    That are its initial values, its dropout and the balancing of its experts. Dropless experts compute what those with
    a slot for each token do.
    """
    experts = model.experts
    if experts:
        experts = experts.with_all_slots() if experts.dispatch == "dropless" else experts
        experts = experts.model_copy(update={"balance": Balance()})
    same = {"init": Init(), "dropout": Dropout(), "experts": experts}
    return fingerprint(resolve(model.model_copy(update=same)))


def describe_model(model: Model) -> dict[str, Any]:
    """Return a model section with all values that differ from the defaults, those of its preset too."""
    return _dump(model)


def _dump(options: BaseModel) -> dict[str, Any]:
    return options.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _describe(value: Any) -> Any:
    """Return a resolved network as JSON, without options that have their defaults."""
    if isinstance(value, BaseModel):
        return _dump(value)
    if is_dataclass(value):
        values = {field.name: (getattr(value, field.name), field.default) for field in fields(value)}
        return {
            name: _describe(field_value) for name, (field_value, default) in values.items() if field_value != default
        }
    return [_describe(item) for item in value] if isinstance(value, tuple) else value
