"""The family of a `config.json`, and that of a model."""

import json
from collections.abc import Mapping
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError, Section
from trainingjob_api.huggingface.families.llama_like import LLAMA, MIXTRAL, QWEN3
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.rope_fields import flatten_rope
from trainingjob_api.spec.model import Model

FAMILIES: Mapping[str, Family] = {family.model_type: family for family in (LLAMA, MIXTRAL, QWEN3)}
"""The families by `model_type`. A model is exported as the first that expresses it."""


def find_family(config: Config) -> Family:
    """Return the family of a `config.json`.

    Raises:
        ConfigError: it is none of `FAMILIES`.
    """
    name = config.get("model_type")
    family = FAMILIES.get(str(name))
    if family is None:
        raise ConfigError("model_type", f"is {json.dumps(name)}, and must be one of: {', '.join(sorted(FAMILIES))}.")
    return family


def read_config(config: Config) -> Section:
    """Return the model section of a `config.json`.

    Raises:
        ConfigError: no model section expresses it.
    """
    return find_family(config).to_section(flatten_rope(config))


def write_config(model: Model) -> tuple[Family, dict[str, Any]] | None:  # None: no family expresses the model
    """Return the family of a model and its `config.json`, without token ids."""
    for family in FAMILIES.values():
        config = family.to_config(model)
        if config is not None:
            return family, config
    return None
