"""The two forms of rotary positions in `config.json`."""

import json
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError

PARAMETERS, SCALING = "rope_parameters", "rope_scaling"
FULL, WINDOW = "full_attention", "sliding_attention"
LOCAL_THETA = "rope_local_base_freq"
"""Base of the frequencies in layers with a window. Those have no scaling."""


def flatten_rope(config: Config) -> Config:
    """Return a `config.json` with `rope_theta` and `rope_scaling`, as most published models have it.

    Since version 5, `transformers` writes both into `rope_parameters`. The older form is read by all versions.

    Raises:
        ConfigError: the parameters of a kind of layer are no object.
    """
    rope = config.get(PARAMETERS)
    if not isinstance(rope, dict):
        return _without_default_scaling(dict(config))
    flat = {key: value for key, value in config.items() if key != PARAMETERS}
    if FULL in rope:  # each kind of layer has its own
        for kind in (FULL, WINDOW):
            if not isinstance(rope.get(kind, {}), dict):
                raise ConfigError(f"{PARAMETERS}.{kind}", f"is {json.dumps(rope[kind])}, and must be an object.")
        flat[LOCAL_THETA] = rope.get(WINDOW, {}).get("rope_theta")
        rope = rope[FULL]
    if "rope_theta" in rope:
        flat["rope_theta"] = rope["rope_theta"]
    flat[SCALING] = {key: value for key, value in rope.items() if key != "rope_theta"}
    return _without_default_scaling(flat)


def nest_rope(config: Config) -> dict[str, Any]:
    """Return the newer form of rotary positions that differ by the kind of layer.

    The older form has no place for the base of layers with a window in all architectures. Some versions of
    `transformers` then give these layers the default of the architecture.
    """
    scaling = config.get(SCALING) or {"rope_type": "default"}
    return {
        FULL: {"rope_theta": config["rope_theta"], **scaling},
        WINDOW: {"rope_theta": config.get(LOCAL_THETA, config["rope_theta"]), "rope_type": "default"},
    }


def _without_default_scaling(config: dict[str, Any]) -> Config:
    """Remove a scaling that changes nothing, and give its kind the newer name."""
    scaling = config.get(SCALING)
    if isinstance(scaling, dict):
        kind = scaling.get("rope_type", scaling.get("type", "default"))
        rest = {key: value for key, value in scaling.items() if key not in ("rope_type", "type")}
        config[SCALING] = None if kind == "default" else {"rope_type": kind, **rest}
    return config
