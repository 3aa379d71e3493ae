"""The files of a split of a data set of the Hugging Face hub: by the metadata of its README.md, else by file names.

The rules are those of `datasets.data_files` and
https://huggingface.co/docs/hub/datasets-data-files-configuration, for files in the repository.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from trainingjob_api.braces import BraceError
from trainingjob_api.globs import Glob
from trainingjob_api.spec.hub import DEFAULT_SPLIT
from trainingjob_api.yaml_limits import YAML_ERRORS, BoundedLoader

DEFAULT_CONFIGURATION = "default"
KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
"""Words in the names of files and folders that name a split."""
SEPARATOR = r"[-._ 0-9]"
SHARDED = re.compile(r"data/(\w+(?:\.\w+)*)-[0-9]{5}-of-[0-9]{5}[^/]*\.[^/]*")
FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


class HubMetadataError(ValueError):
    """The data set has no such configuration or split, or its metadata cannot be read."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field
        """The field of `huggingFace` to change."""


@dataclass(frozen=True)
class Configuration:
    """A configuration of a data set, with the globs of its files by split. Without globs, file names decide.

    Both are relative to `folder`, which is empty or ends with a slash.
    """

    name: str
    folder: str = ""
    patterns: dict[str, tuple[str, ...]] = field(default_factory=dict)
    is_default: bool = False


def find_split_files(files: Iterable[str], readme: str, configuration: str | None, split: str | None) -> list[str]:
    """Return the files of a split, in order. `files` are those that may hold data, `readme` the text of README.md.

    Raises:
        HubMetadataError: there is no such configuration or split, or the metadata cannot be read.
    """
    visible = sorted(name for name in files if not any(part.startswith((".", "__")) for part in name.split("/")))
    chosen = _choose(_read_configurations(readme), configuration)
    below = [name for name in visible if name.startswith(chosen.folder)]
    found = _match(below, chosen) if chosen.patterns else _group_by_name(below, chosen.folder)
    split_name = split or DEFAULT_SPLIT
    if split_name not in found:
        raise HubMetadataError(f"has no split {split_name}. It has {_name_all(found)}.", "split")
    return found[split_name]


def _read_configurations(readme: str) -> list[Configuration]:
    match = FRONT_MATTER.match(readme)
    if match is None:
        return []
    try:
        metadata = yaml.load(match[1], Loader=BoundedLoader)  # noqa: S506  # a safe loader
    except YAML_ERRORS as error:
        raise HubMetadataError("has a README.md whose metadata is no YAML, or too large.", "repository") from error
    given = metadata.get("configs") if isinstance(metadata, dict) else None
    return [_read_configuration(entry) for entry in given] if isinstance(given, list) else []


def _read_configuration(given: Any) -> Configuration:
    if not isinstance(given, dict):
        raise HubMetadataError("has a README.md with a configuration that is no mapping.", "repository")
    name = str(given.get("config_name", DEFAULT_CONFIGURATION))
    folder = str(given.get("data_dir") or "").strip("/").removeprefix("./").removeprefix(".")
    patterns: dict[str, tuple[str, ...]] = {}
    rows = given.get("data_files")
    for row in rows if isinstance(rows, list) else [rows]:
        if isinstance(row, Mapping):
            split, paths = str(row.get("split", DEFAULT_SPLIT)), row.get("path")
        else:
            split, paths = DEFAULT_SPLIT, row
        for path in paths if isinstance(paths, list) else [paths]:
            if isinstance(path, str):
                if "://" in path:
                    message = f"has files of {name} outside of the repository: {path}."
                    raise HubMetadataError(message, "configuration")
                patterns[split] = (*patterns.get(split, ()), path)
    return Configuration(name, f"{folder}/" if folder else "", patterns, given.get("default") is True)


def _choose(configurations: Sequence[Configuration], name: str | None) -> Configuration:
    """Return a configuration by its name. None: the default one."""
    by_name = {configuration.name: configuration for configuration in configurations}
    if name is not None:
        if name in by_name:
            return by_name[name]
        raise HubMetadataError(f"has no configuration {name}. It has {_name_all(by_name)}.", "configuration")
    if not configurations:
        return Configuration(DEFAULT_CONFIGURATION)
    default = next(
        (configuration for configuration in configurations if configuration.is_default),
        by_name.get(DEFAULT_CONFIGURATION),
    )
    if default is None and len(configurations) > 1:
        message = f"has several configurations, and none is the default: {_name_all(by_name)}."
        raise HubMetadataError(message, "configuration")
    return default or configurations[0]


def _match(files: Sequence[str], configuration: Configuration) -> dict[str, list[str]]:
    """Return the files that match a glob of each split. Globs are relative to the folder of the configuration."""
    found = {}
    for split, given in configuration.patterns.items():
        try:
            globs = [Glob(pattern.removeprefix("./")) for pattern in given]
        except BraceError as error:
            raise HubMetadataError(f"has files {', '.join(given)}, whose braces {error}", "repository") from error
        found[split] = [
            name for name in files if any(glob.matches(name.removeprefix(configuration.folder)) for glob in globs)
        ]
    return {split: names for split, names in found.items() if names}


def _group_by_name(files: Sequence[str], folder: str) -> dict[str, list[str]]:
    """Return the files of each split, by the first rule that fits any file: shards, folders, file names, all."""
    sharded: dict[str, list[str]] = {}
    for name in files:
        if match := SHARDED.fullmatch(name.removeprefix(folder)):
            sharded.setdefault(match[1], []).append(name)
    if sharded:
        return sharded
    for split_path in (_folders, _file_name):
        found = {
            split: [
                name for name in files if any(_has_keyword(part, keywords) for part in split_path(name[len(folder) :]))
            ]
            for split, keywords in KEYWORDS.items()
        }
        if kept := {split: names for split, names in found.items() if names}:
            return kept
    return {DEFAULT_SPLIT: list(files)} if files else {}


def _folders(name: str) -> list[str]:
    return name.split("/")[:-1]


def _file_name(name: str) -> list[str]:
    return name.split("/")[-1:]


def _has_keyword(part: str, keywords: Sequence[str]) -> bool:
    """Return whether a name is one of some words, or contains one between separators."""
    return any(re.search(rf"(?:^|{SEPARATOR}){keyword}(?:{SEPARATOR}|$)", part) for keyword in keywords)


def _name_all(names: Iterable[str]) -> str:
    some = sorted(names)
    return ", ".join(some[:8]) + (", ..." if len(some) > 8 else "") if some else "none"
