"""The two forms of rotary positions in `config.json`."""

import json
from collections.abc import Mapping
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError

PARAMETERS, SCALING, THETA = "rope_parameters", "rope_scaling", "rope_theta"
FULL, WINDOW = "full_attention", "sliding_attention"
LOCAL_THETA = "rope_local_base_freq"
"""Base of the frequencies in layers with a window. Those have no scaling."""
PARTIAL = "partial_rotary_factor"
ORIGINAL = "original_max_position_embeddings"
DEFAULT = "default"
"""Kind of a scaling that changes nothing."""


def flatten_rope(config: Config, *, by_kind: bool) -> Config:
    """Return a `config.json` with `rope_theta` and `rope_scaling`, as most published models have it.

    Since version 5, `transformers` writes both into `rope_parameters`. The older form is read by all versions.

    Args:
        config: the fields of a `config.json`.
        by_kind: whether the architecture has other positions in layers with a window.

    Raises:
        ConfigError: the positions are in no form that `transformers` reads, or no model section expresses them.
    """
    flat = dict(config)
    rope, scaling = config.get(PARAMETERS), config.get(SCALING)
    if isinstance(rope, dict):
        rope, local = _split_kinds(rope, by_kind=by_kind)
        flat |= local
        if isinstance(scaling, dict) and _name_kind(scaling) != _name_kind(_without_theta(rope)):
            message = f"is {json.dumps(scaling)}, and `{PARAMETERS}` has another scaling. Remove one of them."
            raise ConfigError(SCALING, message)
        flat[SCALING] = rope
    if isinstance(flat.get(SCALING), dict):
        flat |= {THETA: flat[SCALING][THETA]} if flat[SCALING].get(THETA) is not None else {}
        flat[SCALING] = _name_kind(_without_theta(flat[SCALING]))
    _check_partial(flat)
    if isinstance(flat.get(SCALING), dict) and flat.get(ORIGINAL) is not None:
        flat[SCALING] |= {ORIGINAL: flat[ORIGINAL]}  # `transformers` prefers it to that of the scaling
    return flat


def nest_rope(config: Config) -> dict[str, Any]:
    """Return the newer form of rotary positions that differ by the kind of layer.

    The older form has no place for the base of layers with a window in all architectures. Some versions of
    `transformers` then give these layers the default of the architecture.
    """
    scaling = config.get(SCALING) or {"rope_type": DEFAULT}
    return {
        FULL: {THETA: config[THETA], **scaling},
        WINDOW: {THETA: config.get(LOCAL_THETA, config[THETA]), "rope_type": DEFAULT},
    }


def _split_kinds(rope: dict[str, Any], *, by_kind: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the positions of layers without a window, and the base of the others as a field.

    Raises:
        ConfigError: the architecture has them in another form, or layers with a window have a scaling.
    """
    is_nested = FULL in rope or WINDOW in rope
    if is_nested and not by_kind:
        raise ConfigError(
            PARAMETERS, "has positions by kind of layer, and all layers of the architecture have the same."
        )
    if not is_nested and by_kind and rope:
        raise ConfigError(PARAMETERS, f"must hold `{FULL}` and `{WINDOW}`: they differ in the architecture.")
    if not is_nested:
        return rope, {}
    for kind in (FULL, WINDOW):
        if not isinstance(rope.get(kind, {}), dict):
            raise ConfigError(f"{PARAMETERS}.{kind}", f"is {json.dumps(rope[kind])}, and must be an object.")
    window = rope.get(WINDOW, {})
    if (scaling := _name_kind(_without_theta(window))) is not None:
        message = f"is {json.dumps(scaling['rope_type'])}, and only {json.dumps(DEFAULT)} is supported."
        raise ConfigError(f"{PARAMETERS}.{WINDOW}.rope_type", message)
    theta = window.get(THETA)
    return rope.get(FULL, {}), {} if theta is None else {LOCAL_THETA: theta}


def _without_theta(rope: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in rope.items() if key != THETA}


def _name_kind(scaling: dict[str, Any]) -> dict[str, Any] | None:  # None: it changes nothing
    """Return a scaling with the newer name of its kind."""
    kind = scaling.get("rope_type", scaling.get("type", DEFAULT))
    rest = {key: value for key, value in scaling.items() if key not in ("rope_type", "type")}
    return None if kind == DEFAULT and rest.get(PARTIAL) in (None, 1) else {"rope_type": kind, **rest}


def _check_partial(config: Config) -> None:
    """Raise `ConfigError` for positions of a part of each head."""
    for key, holder in ((PARTIAL, config), (f"{SCALING}.{PARTIAL}", config.get(SCALING))):
        if isinstance(holder, Mapping) and holder.get(PARTIAL) not in (None, 1):
            raise ConfigError(key, f"is {json.dumps(holder[PARTIAL])}, and only 1 is supported.")
