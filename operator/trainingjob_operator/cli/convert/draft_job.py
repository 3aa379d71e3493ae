"""A job that is being converted: its spec, what users must fill in, and what has no counterpart."""

import re
from dataclasses import dataclass, field
from typing import Any

from trainingjob_api.huggingface.config_fields import get_path, set_path
from trainingjob_api.presets.registry import PRESETS
from trainingjob_api.spec.hub import REPOSITORY_PATTERN
from trainingjob_api.spec.tokenizer import HUGGING_FACE

REPOSITORY = re.compile(REPOSITORY_PATTERN)
TEXT_FILES = [{"name": "text", "path": "/data/train"}]
TOKENIZER = {"type": "tokenizers", "path": "/data/tokenizer.json"}
"""Paths in the pods that users must replace."""
TEXT_HINT, TOKENIZER_HINT = "the path of your text in the pods.", "the path of tokenizer.json in the pods."
CHECKPOINTS_HINT = "the folder of the checkpoints in the pods."


def is_repository(name: Any) -> bool:
    """Return whether a value of a source is the name of a repository of the hub."""
    return isinstance(name, str) and REPOSITORY.fullmatch(name) is not None


@dataclass(frozen=True)
class Omission:
    """A key of the source that is not in the job."""

    key: str
    value: Any
    reason: str


@dataclass
class DraftJob:
    """A job during its conversion. Paths have dots between their parts, and begin below `spec`."""

    name: str
    source: str
    """Kind and name of the file, for the first line of the job."""
    spec: dict[str, Any] = field(default_factory=dict)
    fill_in: dict[str, str] = field(default_factory=dict)
    """Hints by path: values that users must fill in, because the source does not have them."""
    omissions: list[Omission] = field(default_factory=list)
    sequences_per_device: float | None = None
    """Batch of one device, if the source has no global batch size."""

    def set(self, path: str, value: Any) -> None:
        """Set a field."""
        set_path(self.spec, path, value)

    def get(self, path: str) -> Any:
        """Return a field; None: it is not set."""
        return get_path(self.spec, path)

    def set_placeholder(self, path: str, value: Any, hint: str) -> None:
        """Set a field to a value that users must replace, unless it is set."""
        if self.get(path) is None:
            self.set(path, value)
            self.fill_in[path] = hint

    def use_tokenizer(self, name: Any) -> None:
        """Use the tokenizer of a repository of the hub, if `name` is the name of a repository."""
        if is_repository(name):
            self.set("tokenizer", {"type": HUGGING_FACE, "huggingFace": {"repository": name}})

    def drop_no_tokens(self) -> None:
        """Make the experts of the model dropless, if it has any: slots for all tokens would cost many times as much."""
        preset = PRESETS.get(self.get("model.preset") or "")
        experts = self.get("model.experts")
        if experts or (preset and "experts" in preset.model):
            options = {name: value for name, value in (experts or {}).items() if name != "capacityFactor"}
            self.set("model.experts", options | {"dispatch": "dropless"})

    def omit(self, key: str, value: Any, reason: str) -> None:
        """Record a key of the source that is not in the job."""
        self.omissions.append(Omission(key, value, reason))
