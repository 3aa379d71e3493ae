"""The small files beside published weights: configuration, tokenizer and options of generation.

A job keeps those of its initial weights below its own folder, because the source may be gone when it exports.
"""

from collections.abc import Iterator
from typing import Any

from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.huggingface.tokenizer_files import FOLDER_FILES
from trainingjob_trainer.huggingface.weights_folder import CONFIG_FILE, read_json
from trainingjob_trainer.store.port import Store

COMPANIONS = (
    CONFIG_FILE,
    "generation_config.json",
    *FOLDER_FILES,
    "tokenizer.model",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
MAX_BYTES = 200_000_000
FOLDER = "huggingface"
"""Where a job keeps them, below `checkpoint.uri`."""


def keep_companions(source: Store, own: Store) -> None:
    """Copy the small files beside published weights into a job's folder.

    Raises:
        WeightsError: one is not a file, or too large.
        OSError: a store does not respond.
    """
    for name, content in _read_companions(source, ""):
        own.write(f"{FOLDER}/{name}", [content])


def copy_companions(own: Store, target: Store) -> None:
    """Copy the small files that a job has kept into an exported folder, except its configuration.

    Raises:
        WeightsError: one is not a file, or too large.
        OSError: a store does not respond.
    """
    for name, content in _read_companions(own, f"{FOLDER}/"):
        if name != CONFIG_FILE:
            target.write(name, [content])


def read_kept_config(own: Store) -> dict[str, Any]:
    """Return the configuration of a job's initial weights; empty: it has none."""
    names = {entry.name for entry in own.list_folder(FOLDER)}
    return dict(read_json(own, f"{FOLDER}/{CONFIG_FILE}")) if CONFIG_FILE in names else {}


def _read_companions(store: Store, prefix: str) -> Iterator[tuple[str, bytes]]:
    names = {entry.name for entry in store.list_folder(prefix.rstrip("/"))}
    for name in COMPANIONS:
        if name in names:
            try:
                yield name, store.read(f"{prefix}{name}", MAX_BYTES)
            except ValueError as error:
                raise WeightsError(f"{name} cannot be copied: {error}") from error
