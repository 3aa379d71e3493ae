"""Names of tensors as users write them: the nearest ones of a model to a name that it does not have."""

from collections.abc import Sequence
from difflib import get_close_matches

MAX_NEAREST = 3
PUBLISHED_NAMES = {
    "q_proj": "query",
    "k_proj": "key",
    "v_proj": "value",
    "o_proj": "out",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "embed_tokens": "embedding",
    "lm_head": "head",
}
"""Names in files of Hugging Face, which PEFT uses too, and ours."""


def nearest_patterns(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return the patterns for tensors that a pattern without match probably meant, best first."""
    last = pattern.rpartition(".")[2]
    local = PUBLISHED_NAMES.get(last, last)
    of_name = [name for name in names if name.rpartition(".")[2] == local]
    if of_name:
        return tuple(dict.fromkeys(any_group(name) for name in of_name))[:MAX_NEAREST]
    return tuple(get_close_matches(pattern, names, MAX_NEAREST, cutoff=0.4))


def any_group(name: str) -> str:
    """Return the pattern of a tensor in all groups of layers: its part and its name, without the group."""
    parts = name.split(".")
    return name if len(parts) < 3 else f"*.{'.'.join(parts[-2:])}"
