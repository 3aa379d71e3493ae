"""Fields of `config.json` and what they are in `spec.model`: one table for both directions."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

type Config = Mapping[str, Any]
"""The content of a `config.json`."""
type Section = dict[str, Any]
"""A `model` section, as a job's YAML holds it."""


class ConfigError(ValueError):
    """A `config.json` that no model section expresses.

    Attributes:
        key: the field of `config.json`, with dots between its parts.
    """

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"config.json: `{key}` {message}")
        self.key = key


@dataclass(frozen=True)
class Required:
    """Default of a field that `config.json` must have."""


@dataclass(frozen=True)
class Unset:
    """Default of a field that `config.json` may lack, as the model section may."""


type Default = Required | Unset | bool | float | str


@dataclass(frozen=True)
class Field:
    """A number or text that `config.json` and the model section both have."""

    key: str
    """Name in `config.json`, with dots between its parts."""
    path: str
    """Name in the model section, with dots between its parts."""
    default: Default = Required()
    """Value of a `config.json` without the key."""
    values: Mapping[str, Any] | None = None
    """Value of the model section for each value of the key. None: the same."""
    absent: float | None = None
    """Value of a `config.json` without the key, where null is another one. None: `default`."""

    def read(self, config: Config, section: Section) -> None:
        """Copy the value from a `config.json` into a model section.

        Raises:
            ConfigError: the key is missing, or no model section expresses its value.
        """
        value = get_path(config, self.key)
        if value is None:
            value = self.default if self.absent is None or self.key in config else self.absent
        if isinstance(value, Required):
            raise ConfigError(self.key, "is missing.")
        if isinstance(value, Unset):
            return
        if self.values is not None:
            if value not in self.values:
                raise ConfigError(self.key, f"is {json.dumps(value)}, and must be one of: {', '.join(self.values)}.")
            value = self.values[value]
        set_path(section, self.path, value)

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Copy the value from a model section into a `config.json`.

        An unset one is null: the default of a missing key may be a number.
        """
        value = get_path(section, self.path)
        if self.values is not None:
            value = next((key for key, section_value in self.values.items() if section_value == value), None)
        if value is not None or isinstance(self.default, Unset):
            set_path(config, self.key, value)


@dataclass(frozen=True)
class Repeated:
    """A field of `config.json` that repeats another one in all models of a family."""

    key: str
    path: str
    """Name of the value in the model section."""

    def read(self, config: Config, section: Section) -> None:
        """Check the value, if there is one.

        Raises:
            ConfigError: it is another one.
        """
        value, other = get_path(config, self.key), get_path(section, self.path)
        if value not in (None, other):
            raise ConfigError(self.key, f"is {json.dumps(value)}, and only {json.dumps(other)} is supported.")

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the value."""
        set_path(config, self.key, get_path(section, self.path))


@dataclass(frozen=True)
class Fixed:
    """A field of `config.json` of which a model section expresses one value alone."""

    key: str
    value: Any
    default: Any = None
    """Value of a `config.json` without the key."""

    def read(self, config: Config, section: Section) -> None:
        """Check the value.

        Raises:
            ConfigError: it is another one.
        """
        value = get_path(config, self.key)
        value = self.default if value is None else value
        if value != self.value:
            raise ConfigError(self.key, f"is {json.dumps(value)}, and only {json.dumps(self.value)} is supported.")

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write the value."""
        set_path(config, self.key, self.value)


@dataclass(frozen=True)
class Option:
    """A field of the model section that has one value in all models of a family."""

    path: str
    value: bool | float | str | tuple[str, ...]

    def read(self, config: Config, section: Section) -> None:
        """Set the value."""
        set_path(section, self.path, list(self.value) if isinstance(self.value, tuple) else self.value)

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Write nothing: `config.json` has no such field."""


class ConfigField(Protocol):
    """What a `config.json` and a model section state about the same option of a model."""

    def read(self, config: Config, section: Section) -> None:
        """Copy from a `config.json` into a model section.

        Raises:
            ConfigError: no model section expresses the value.
        """

    def write(self, section: Section, config: dict[str, Any]) -> None:
        """Copy from a model section into a `config.json`."""


def get_path(tree: Mapping[str, Any], path: str) -> Any:
    """Return a value of nested mappings; None: it is missing."""
    value: Any = tree
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def set_path(tree: dict[str, Any], path: str, value: Any) -> None:
    """Set a value of nested dicts, and create those around it."""
    *parents, last = path.split(".")
    for part in parents:
        tree = tree.setdefault(part, {})
    tree[last] = value


def read_fields(fields: Iterable[ConfigField], config: Config) -> Section:
    """Return the model section of a `config.json`.

    Raises:
        ConfigError: a field is missing, or has a value that no model section expresses.
    """
    section: Section = {}
    for field in fields:
        try:
            field.read(config, section)
        except ConfigError:
            raise
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            key = getattr(field, "key", "")  # what has none reads nothing
            message = f"or a field that it depends on has a value of another kind than in `transformers`: {error}."
            raise ConfigError(key, message) from error
    return section


def write_fields(fields: Iterable[ConfigField], section: Section) -> dict[str, Any]:
    """Return the fields of a `config.json` that are those of a model section."""
    config: dict[str, Any] = {}
    for field in fields:
        field.write(section, config)
    return config
