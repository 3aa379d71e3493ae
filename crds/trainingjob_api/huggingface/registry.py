"""The family of a `config.json`, and that of a model."""

import json
from collections.abc import Mapping
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError, Section
from trainingjob_api.huggingface.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from trainingjob_api.huggingface.families.gemma import GEMMA, GEMMA2, GEMMA3
from trainingjob_api.huggingface.families.gpt2 import GPT2
from trainingjob_api.huggingface.families.gpt_oss import GPT_OSS
from trainingjob_api.huggingface.families.llama4 import LLAMA4
from trainingjob_api.huggingface.families.llama_like import (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    OLMO3,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
)
from trainingjob_api.huggingface.family import Family, Values
from trainingjob_api.huggingface.rope_fields import flatten_rope
from trainingjob_api.spec.model import Model

ALL = (
    LLAMA, MISTRAL, MIXTRAL, QWEN2, QWEN3, QWEN3_MOE, GEMMA, GEMMA2, GEMMA3, OLMO3, GPT2, DEEPSEEK_V2, DEEPSEEK_V3,
    GPT_OSS, LLAMA4,
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {family.model_type: family for family in ALL}
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
    family = find_family(config)
    return family.to_section(flatten_rope(config, by_kind=family.has_local_rope))


def write_config(model: Model) -> tuple[Family, dict[str, Any]] | None:  # None: no family expresses the model
    """Return the family of a model and its `config.json`, without token ids."""
    for family in FAMILIES.values():
        config = family.to_config(model)
        if config is not None:
            return family, config
    return None


def find_nearest(model: Model) -> tuple[Family, Mapping[str, Values]]:
    """Return the family that differs from a model in the fewest fields, and these fields."""
    found = ((family, family.find_differences(model)) for family in FAMILIES.values())
    return min(((family, fields) for family, fields in found if fields is not None), key=lambda pair: len(pair[1]))
