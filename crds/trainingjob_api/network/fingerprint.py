"""The fingerprint of a network, by which a plan, a preset and a checkpoint are compared."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pydantic import BaseModel

from trainingjob_api.network.dropout import Dropout
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Balance
from trainingjob_api.spec.model import Init, Model

MAX_DIFFERENCES = 5
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
        return {name: _describe(one) for name, (one, default) in values.items() if one != default}
    return [_describe(one) for one in value] if isinstance(value, tuple) else value


def find_differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields in which two model sections differ, such as `rope.theta was 10000, not 500000`.

    The list ends after `MAX_DIFFERENCES` fields.
    """
    before, after = dict(_flatten(saved)), dict(_flatten(current))
    named = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    told = [f"{name} was {_format(before, name)}, not {_format(after, name)}" for name in named[:MAX_DIFFERENCES]]
    return (*told, *([f"and {len(named) - len(told)} more fields differ"] if len(named) > len(told) else []))


def _flatten(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


def _format(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "unset"
