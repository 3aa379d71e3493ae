"""Layers that differ, in `config.json` and in a model section."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError, Section, get_path, set_path
from trainingjob_api.huggingface.rope_fields import FULL, LOCAL_THETA, PARAMETERS, THETA, WINDOW, nest_rope

KINDS = "layer_types"


@dataclass(frozen=True)
class LayerTypes:
    """The kind of attention of each layer, and the window of those that have one."""

    default: tuple[str, ...]
    """Kinds that repeat in a `config.json` without them."""
    window_key: str = "sliding_window"
    default_window: int | None = None
    """Window of a `config.json` without it. None: it must have one."""
    local_theta: float | None = None
    """Base of the frequencies in layers with a window, in a `config.json` without it. None: that of all layers."""
    has_local_rope: bool = False
    """Whether the scaling, and `rope_theta`, are those of layers without a window."""
    key: str = KINDS
    cycle_key: str | None = None
    """Length of the cycle in a `config.json` without kinds, whose last layer has no window. None: that of `default`."""

    def read(self, config: Config, section: Section) -> None:
        """Set the window and the pattern of layers.

        Raises:
            ConfigError: a layer has an unknown kind or none, or there is no window.
        """
        types = config.get(KINDS) or repeat(self._find_default(config), section["numLayers"])
        if len(types) != section["numLayers"]:
            message = f"has {len(types)} kinds, and must have one for each of the {section['numLayers']} layers."
            raise ConfigError(KINDS, message)
        unknown = sorted(set(types) - {FULL, WINDOW})
        if unknown:
            raise ConfigError(KINDS, f"holds {json.dumps(unknown[0])}, and must be of: {FULL}, {WINDOW}.")
        if WINDOW not in types:
            return
        window = config.get(self.window_key, self.default_window)
        if window is None:
            raise ConfigError(self.window_key, "is missing.")
        set_path(section, "attention.window", window)
        if FULL not in types:
            self._use_local_rope(config, section)
        else:
            kinds = [{"attention": "full"} if kind == FULL else self._windowed(config) for kind in find_cycle(types)]
            set_path(section, "layers.pattern", count_runs(kinds))

    def _find_default(self, config: Config) -> tuple[str, ...]:
        """Return the kinds that repeat in a `config.json` without kinds."""
        length = config.get(self.cycle_key) if self.cycle_key else None
        return self.default if length is None else (*[WINDOW] * (length - 1), FULL)

    def _find_local_theta(self, config: Config) -> float | None:
        """Return the base of the frequencies in layers with a window. None: the default of all layers."""
        theta: float | None = config.get(LOCAL_THETA) or self.local_theta or config.get(THETA)
        return theta

    def _use_local_rope(self, config: Config, section: Section) -> None:
        """Give all layers the positions of those with a window: there are no others."""
        theta = self._find_local_theta(config)
        if self.has_local_rope and theta is not None:
            section["rope"] = {"theta": theta}

    def _windowed(self, config: Config) -> Section:
        """Return what a layer with a window has."""
        theta = self._find_local_theta(config)
        is_other = config.get("rope_scaling") is not None or theta != config.get(THETA)
        return {"rope": {"theta": theta}} if self.has_local_rope and is_other else {}

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the kind of each layer."""
        window = get_path(section, "attention.window")
        pattern = get_path(section, "layers.pattern") or [{}]
        kinds = expand_runs(pattern)
        types = [FULL if window is None or kind.get("attention") == "full" else WINDOW for kind in kinds]
        config[KINDS] = repeat(types, section["numLayers"])
        if window is not None:
            set_path(config, self.window_key, window)
        ropes = [kind["rope"]["theta"] for kind in pattern if kind.get("rope")]
        if ropes or self.local_theta is not None:  # else older versions take the default of the architecture
            config[LOCAL_THETA] = ropes[0] if ropes else config[THETA]
        if self.has_local_rope:
            config[PARAMETERS] = nest_rope(config)


@dataclass(frozen=True)
class Window:
    """One window of all layers."""

    key: str = "sliding_window"
    default: int | None = None
    """Window of a `config.json` without the key. Null is none."""

    def read(self, config: Config, section: Section) -> None:
        """Set the window."""
        window = config.get(self.key, self.default)
        if window is not None:
            set_path(section, "attention.window", window)

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the window; null: there is none."""
        config[self.key] = get_path(section, "attention.window")


@dataclass(frozen=True)
class MistralWindow(Window):
    """One window of all layers, or of those that `layer_types` names: `transformers` then reads it as Ministral."""

    def read(self, config: Config, section: Section) -> None:
        """Set the window, and the pattern of layers if they differ.

        Raises:
            ConfigError: a layer has an unknown kind or none, or there is no window.
        """
        if config.get(KINDS):
            self._list_kinds().read(config, section)
        else:
            super().read(config, section)

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the window, and the kind of each layer if they differ."""
        super().write(section, config)
        if get_path(section, "layers.pattern"):
            self._list_kinds().write(section, config)

    def _list_kinds(self) -> LayerTypes:
        return LayerTypes((FULL,), self.key, self.default)


@dataclass(frozen=True)
class LeadingDense:
    """First layers that have an MLP instead of experts."""

    key: str = "first_k_dense_replace"

    def read(self, config: Config, section: Section) -> None:
        """Set the leading layers."""
        if config.get(self.key):
            set_path(section, "layers.leading", [{"count": config[self.key], "feedForward": "dense"}])

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the number of leading layers."""
        config[self.key] = len(expand_runs(get_path(section, "layers.leading") or ()))


def repeat[T](cycle: Sequence[T], length: int) -> list[T]:
    """Return the beginning of an endless repetition."""
    return [cycle[position % len(cycle)] for position in range(length)]


def find_cycle[T](values: Sequence[T]) -> Sequence[T]:
    """Return the shortest beginning whose repetition begins with all values."""
    lengths = range(1, len(values))
    return next((values[:size] for size in lengths if repeat(values[:size], len(values)) == list(values)), values)


def count_runs(kinds: Sequence[Mapping[str, Any]]) -> list[Section]:
    """Return a kind with a count for each run of equal ones."""
    runs = ((kind, len(list(run))) for kind, run in groupby(kinds))
    return [{**kind, **({"count": count} if count > 1 else {})} for kind, count in runs]


def expand_runs(kinds: Sequence[Section]) -> list[Section]:
    """Return the kind of each layer, from kinds with counts."""
    return [kind for kind in kinds for _ in range(kind.get("count", 1))]
