"""A preset: the model section of a published model, and where its numbers are published."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from trainingjob_api.huggingface.config_fields import Section


@dataclass(frozen=True)
class Preset:
    """A published model. What a published preset means never changes: a correction gets a new name."""

    name: str
    source: str
    """URL of its `config.json`, or of its paper."""
    parameters: int
    """Published number of parameters, of the decoder alone."""
    context: int
    """Longest sequence that it is published for, in tokens."""
    model: Section
    """The `model` section as users write it, with only what differs from the defaults."""
    note: str = ""
    """What the source counts differently, or what the preset leaves out. Empty: nothing."""


def dims(
    *, vocab: int, layers: int, embed: int, mlp: int, heads: int, kv_heads: int | None = None, head: int | None = None
) -> Section:
    """Return the dimensions of a model section.

    `kv_heads` and `head`, the width of a head, can be omitted where they follow from the others.
    """
    section = {"vocabSize": vocab, "numLayers": layers, "embedDim": embed, "mlpDim": mlp, "numHeads": heads}
    optional = {"numKvHeads": kv_heads, "headDim": head}
    return section | {name: value for name, value in optional.items() if value is not None}


def drop_no_tokens(experts: Section) -> Section:
    """Return experts with the capacity for all tokens: published models drop none."""
    return experts | {"capacityFactor": experts["count"] / experts["perToken"]}


def hub(repository: str) -> str:
    """Return the URL of the `config.json` of a repository on the Hugging Face hub."""
    return f"https://huggingface.co/{repository}/blob/main/config.json"


def index(presets: Iterable[Preset]) -> Mapping[str, Preset]:
    """Return presets by name.

    Raises:
        ValueError: two presets have one name.
    """
    by_name: dict[str, Preset] = {}
    for preset in presets:
        if preset.name in by_name:
            raise ValueError(f"preset {preset.name}: the name must be unique.")
        by_name[preset.name] = preset
    return by_name
