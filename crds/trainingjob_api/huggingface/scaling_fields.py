"""The scaling of rotary positions in `config.json`."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError, Section, get_path, set_path

KEYS: Mapping[str, Mapping[str, str]] = {
    "linear": {},
    "llama3": {"low_freq_factor": "llama3.lowFrequency", "high_freq_factor": "llama3.highFrequency"},
    "yarn": {
        "beta_fast": "yarn.betaFast",
        "beta_slow": "yarn.betaSlow",
        "truncate": "yarn.truncate",
        "attention_factor": "yarn.attentionFactor",
    },
}
"""By kind of scaling, the names in `config.json` and in the scaling of a model section."""


@dataclass(frozen=True)
class Scaling:
    """The scaling, in the older form of `config.json`."""

    path: str = "rope.scaling"
    """Name in the model section."""
    key: str = "rope_scaling"

    def read(self, config: Config, section: Section) -> None:
        """Copy the scaling into a model section.

        Raises:
            ConfigError: it has an unknown kind, or lacks its factor.
        """
        scaling = get_path(config, self.key)
        if scaling is None:
            return
        set_path(section, self.path, read_scaling(scaling, self.key, config.get("max_position_embeddings")))

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Copy the scaling of a model section."""
        scaling = get_path(section, self.path)
        if scaling is not None:
            set_path(config, self.key, write_scaling(scaling))


def read_scaling(scaling: Config, key: str, max_positions: int | None) -> Section:
    """Return the scaling of a model section.

    Raises:
        ConfigError: it has an unknown kind, or lacks its factor.
    """
    kind = str(scaling.get("rope_type"))
    if kind not in KEYS:
        raise ConfigError(f"{key}.rope_type", f"is {json.dumps(kind)}, and must be one of: {', '.join(KEYS)}.")
    if "factor" not in scaling:
        raise ConfigError(f"{key}.factor", "is missing.")
    read: Section = {"type": kind, "factor": scaling["factor"]}
    if kind != "linear":
        read["originalLength"] = scaling.get("original_max_position_embeddings", max_positions)
    for name, path in KEYS[kind].items():
        if scaling.get(name) is not None:
            set_path(read, path, scaling[name])
    if kind == "yarn" and not _has_factor(scaling) and scaling.get("mscale") and scaling.get("mscale_all_dim"):
        scales = [scale_yarn(scaling["factor"], scaling[name]) for name in ("mscale", "mscale_all_dim")]
        set_path(read, "yarn.attentionFactor", scales[0] / scales[1])
    return read


def _has_factor(scaling: Config) -> bool:
    """Return whether the factor on queries and keys is given: it does not follow from the other fields then."""
    return scaling.get("attention_factor") is not None


def write_scaling(scaling: Section) -> dict[str, Any]:
    """Return the scaling of a `config.json`."""
    kind = scaling["type"]
    fields: dict[str, Any] = {"rope_type": kind, "factor": scaling["factor"]}
    if kind != "linear":
        fields["original_max_position_embeddings"] = scaling["originalLength"]
    for name, path in KEYS[kind].items():
        value = get_path(scaling, path)
        if value is not None and (name, value) != ("truncate", True):  # the default, which older versions lack
            fields[name] = value
    return fields


def scale_yarn(factor: float, mscale: float) -> float:
    """Return YaRN's factor on queries and keys (arXiv 2309.00071), with the multiple that DeepSeek adds."""
    return 0.1 * mscale * math.log(factor) + 1


@dataclass(frozen=True)
class LatentScale:
    """The factor on the products of queries and keys in DeepSeek, which follows from `mscale_all_dim`."""

    key: str = "rope_scaling"

    def read(self, config: Config, section: Section) -> None:
        """Set the factor."""
        scaling = get_path(config, self.key) or {}
        if scaling.get("mscale_all_dim"):
            growth = scale_yarn(scaling["factor"], scaling["mscale_all_dim"])
            set_path(section, "attention.scale", _head_dim(section) ** -0.5 * growth**2)

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Set the multiple that results in the factor."""
        scale = get_path(section, "attention.scale")
        if scale is None or get_path(config, self.key) is None:
            return
        growth = math.sqrt(scale * math.sqrt(_head_dim(section)))
        mscale = round((growth - 1) / (0.1 * math.log(config[self.key]["factor"])), 6)
        config[self.key] = {
            **{key: value for key, value in config[self.key].items() if (key, value) != ("attention_factor", 1.0)},
            "mscale": mscale,
            "mscale_all_dim": mscale,
        }


def _head_dim(section: Section) -> int:
    latent = section["latentAttention"]
    width: int = latent["ropeDim"] + latent["noRopeDim"]
    return width
