"""Frozen tensors in a store: written once into a separate folder, to which the steps of a job refer.

Training never changes them, so a step that had them would repeat the bytes of every step before it. The folder has the
form of a step: a claim, the arrays, and a manifest that commits it. A step is intact only together with its folder.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_trainer.checkpoint.manifest import (
    FileHash,
    Integrity,
    SavedFrozen,
    dump_integrity,
    find_damage,
    hash_chunks,
    read_integrity,
)
from trainingjob_trainer.checkpoint.step_folders import StepFolder
from trainingjob_trainer.models.trainable import merge_trees, select, tensor_name

type Items = dict[str, Any]


class ArrayFolders(NamedTuple):
    """Paths or URIs of the folders that have the arrays of a step. `tensors` are the parameters in the second one."""

    step: str
    frozen: str = ""
    """Empty: the step has all arrays."""
    tensors: frozenset[str] = frozenset()

    def read(self, items: Mapping[str, Any], read: Callable[[str, Items], Items]) -> Items:
        """Return items of a state, which `read` returns for each folder and the part of the items in it."""
        changing, frozen = split_items(items, self.tensors)
        restored = read(self.step, changing) if changing else {}
        return merge_items(restored, read(self.frozen, frozen) if frozen else {})


def split_items(items: Mapping[str, Any], tensors: frozenset[str]) -> tuple[Items, Items]:
    """Return the items of a state without the parameters of some names, and an item with these; without any: empty."""
    params = items.get("params", {})
    frozen = select(params, tensors.__contains__)
    if not frozen:
        return dict(items), {}
    trained = select(params, lambda name: name not in tensors)
    changing = {name: item for name, item in items.items() if name != "params"}
    return changing | ({"params": trained} if trained else {}), {"params": frozen}


def merge_items(changing: Items, frozen: Items) -> Items:
    """Return the items that were split."""
    if not frozen:
        return changing
    return changing | {"params": merge_trees(changing.get("params", {}), frozen["params"])}


def list_tensors(frozen: Items) -> tuple[str, ...]:
    """Return the sorted names of the frozen tensors in an item that was split off."""
    return tuple(sorted(tensor_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(frozen.get("params", {}))))


def refer_to(folder: StepFolder, manifest: Integrity, tensors: tuple[str, ...]) -> SavedFrozen:
    """Return the reference to a folder of frozen tensors that has this manifest."""
    return SavedFrozen(folder=folder.name, manifest=hash_chunks((dump_integrity(manifest),)), tensors=tensors)


def find_array_folders(folder: StepFolder, saved: Integrity | None = None) -> ArrayFolders:
    """Return the folders of a step's arrays. `saved` None: the manifest is read.

    Raises:
        ValueError: the manifest is malformed.
        OSError: the store does not respond.
    """
    saved = saved or read_integrity(folder)
    if saved is None or saved.frozen is None:
        return ArrayFolders(folder.location)
    return ArrayFolders(folder.location, folder.store.locate(saved.frozen.folder), frozenset(saved.frozen.tensors))


class SavedFile(NamedTuple):
    """A file of a step, or of the frozen tensors to which the step refers, with its expected hash."""

    folder: StepFolder
    name: str
    expected: FileHash

    def describe(self, damage: str, step: StepFolder) -> str:
        """Return the damage of this file as that of a step."""
        return damage if self.folder == step else describe_frozen_damage(self.folder, damage)


def list_saved_files(folder: StepFolder, saved: Integrity) -> list[SavedFile]:
    """Return all files of a step, with those of its frozen tensors.

    Raises:
        ValueError: the folder of the frozen tensors is not committed, or has another manifest.
        OSError: the store does not respond.
    """
    own = [SavedFile(folder, name, saved.files[name]) for name in sorted(saved.files)]
    if saved.frozen is None:
        return own
    frozen, manifest = read_frozen(folder, saved.frozen)
    return own + [SavedFile(frozen, name, manifest.files[name]) for name in sorted(manifest.files)]


def read_frozen(step: StepFolder, reference: SavedFrozen) -> tuple[StepFolder, Integrity]:
    """Return the folder of a step's frozen tensors, and its manifest.

    Raises:
        ValueError: the folder is not committed, or has another manifest.
        OSError: the store does not respond.
    """
    frozen = StepFolder(step.store, reference.folder)
    damage = find_damage(frozen, {MANIFEST_FILE: reference.manifest})
    manifest = None if damage else read_integrity(frozen)
    if manifest is None:
        raise ValueError(describe_frozen_damage(frozen, damage or f"{MANIFEST_FILE} is missing"))
    return frozen, manifest


def describe_frozen_damage(frozen: StepFolder, damage: str) -> str:
    """Return the damage of frozen tensors as a message about a step, with the next step of the reader."""
    return (
        f"{damage} in {frozen.location}, the frozen tensors of the step: restore that folder from a copy, and delete "
        "the files *.quarantined of its steps"
    )
