"""The module of `program.entrypoint`: its function, and a hash of the sources that may shape compiled programs.

The module is imported once a process, by the standby in advance. The hash is that of the sources at that time. It is
part of the compile-cache key, and the same on all hosts of a world.
"""

import hashlib
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from jax._src import xla_bridge

from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.program import Program
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup

ENTRYPOINT_PATH = "spec.program.entrypoint"
WORKING_DIRECTORY_PATH = "spec.program.workingDirectory"
MAX_ENTRIES = 10_000
"""Files and folders of a folder of sources. More are data, and would make each start slow."""
COMPARE_SECONDS = 1800
"""Seconds that a process waits for the hash of another one, which may still read its sources."""


class Entrypoint(NamedTuple):
    """The imported function, and where its sources are."""

    function: Callable[[Any], Any]
    sources: Path
    """The folder of its sources, or its only file."""
    sources_hash: str


def load_entrypoint(program: Program) -> Entrypoint:
    """Import the function of a program section that has `entrypoint`. Later calls return the same.

    Raises:
        TrainingError: there is no such function, or its import fails.
    """
    assert program.entrypoint  # noqa: S101  # validation requires it where there is no command
    return _load(program.entrypoint, program.working_directory)


def compare_sources(program: Program, peers: ProcessGroup) -> None:
    """Check that all processes have imported the same sources. All processes call it together.

    Raises:
        TrainingError: they differ, as during an edit of a shared folder.
    """
    hashes = peers.exchange("entrypoint", load_entrypoint(program).sources_hash, COMPARE_SECONDS)
    other = next((number for number, source_hash in enumerate(hashes) if source_hash != hashes[0]), None)
    if other is not None:
        message = (
            f"processes 0 and {other} have imported different sources. Install them in the image, or do not edit them "
            "while the job runs."
        )
        raise entrypoint_error(program.entrypoint, message, fatal=False)


def entrypoint_error(entrypoint: str | None, message: str, *, fatal: bool = True) -> TrainingError:
    """Return the error of an entrypoint that cannot be used."""
    return TrainingError(FailureReason.CONFIG, message, path=ENTRYPOINT_PATH, value=entrypoint, fatal=fatal)


@contextmanager
def explain_errors(entrypoint: str | None, task: str, sources: Path | None = None) -> Iterator[None]:
    """Turn any error of the user's code into a `TrainingError` with its place in `sources`."""
    try:
        yield
    except TrainingError:
        raise
    except (Exception, SystemExit) as error:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if sources is not None and Path(frame.filename).resolve().is_relative_to(sources.resolve())
        ]
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        message = f"{task} failed with {type(error).__name__}: {error}{place}. Correct it, and create the job again."
        raise entrypoint_error(entrypoint, message) from error


@cache
def _load(entrypoint: str, folder: str | None) -> Entrypoint:
    name, _, attribute = entrypoint.partition(":")
    _add_to_search_path(folder if folder is not None else str(Path.cwd()))  # unset: a module of the image
    module = _import(entrypoint, name, folder)
    if folder is not None:
        _check_origin(entrypoint, module, folder)
    sources = Path(folder) if folder is not None else _find_sources(name)
    return Entrypoint(_find_function(entrypoint, module, attribute), sources, _hash_sources(sources))


def _add_to_search_path(folder: str) -> None:
    """Let imports find modules of a folder. It comes last: no module of it may replace one of the trainer."""
    if not Path(folder).is_dir():
        message = "must be a folder on every host. Mount its volume in `spec.runtime.volumes`, or correct the path."
        raise TrainingError(FailureReason.CONFIG, message, path=WORKING_DIRECTORY_PATH, value=folder)
    if folder not in sys.path:
        sys.path.append(folder)
    importlib.invalidate_caches()


def _import(entrypoint: str, name: str, folder: str | None) -> ModuleType:
    had_devices = xla_bridge.backends_are_initialized()
    place = folder or "the image"
    try:
        with explain_errors(entrypoint, f"the import of {name}", Path(folder) if folder else None):
            module = importlib.import_module(name)
    except TrainingError as error:
        missing = error.__cause__.name if isinstance(error.__cause__, ModuleNotFoundError) else None
        if missing is None:
            raise
        if name == missing or name.startswith(f"{missing}."):
            message = f"{place} must have the module {missing}. Correct it, or set `spec.program.workingDirectory`."
        else:
            message = f"{name} imports the module {missing}, which must be in {place}. Install it in the image."
        raise entrypoint_error(entrypoint, message) from error
    if xla_bridge.backends_are_initialized() and not had_devices:
        message = f"the import of {name} must use no device: the world is not known yet. Create arrays in the function."
        raise entrypoint_error(entrypoint, message)
    return module


def _check_origin(entrypoint: str, module: ModuleType, folder: str) -> None:
    """Refuse a module that another one of the same name hides."""
    # A folder without `__init__.py` is a module without a file.
    origin = Path(module.__file__ or next(iter(module.__path__))).resolve()
    if not origin.is_relative_to(Path(folder).resolve()):
        message = f"{module.__name__} must be a module of {folder}, but {origin} has the same name. Rename the module."
        raise entrypoint_error(entrypoint, message)


def _find_function(entrypoint: str, module: ModuleType, attribute: str) -> Callable[[Any], Any]:
    function = getattr(module, attribute, None)
    if not callable(function):
        functions = [
            name for name, value in vars(module).items() if inspect.isfunction(value) and not name.startswith("_")
        ]
        message = f"{module.__name__} must have the function {attribute}. It has: {', '.join(functions) or 'none'}."
        raise entrypoint_error(entrypoint, message)
    try:
        inspect.signature(function).bind(None)
    except (TypeError, ValueError) as error:
        message = f"{attribute} must take one argument, the context of the entrypoint: {error}."
        raise entrypoint_error(entrypoint, message) from error
    result: Callable[[Any], Any] = function
    return result


def _find_sources(name: str) -> Path:
    """Return the folder of the package that has a module, or the file of a module without a package."""
    top = sys.modules[name.partition(".")[0]]
    folders = list(getattr(top, "__path__", ()))
    return Path(folders[0]) if folders else Path(top.__file__ or name)


def _hash_sources(sources: Path) -> str:
    """Return a hash of the Python files of a folder, or of one file."""
    digest = hashlib.sha256()
    for path in sorted(_list_python_files(sources)) if sources.is_dir() else [sources]:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(sources.parent).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()


def _list_python_files(folder: Path) -> Iterator[Path]:
    num_entries = 0
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__" and not name.startswith(".")]
        num_entries += len(folders) + len(names)
        if num_entries > MAX_ENTRIES:
            message = f"must have at most {MAX_ENTRIES:,} files and folders. Move the sources into a separate folder."
            raise TrainingError(FailureReason.CONFIG, message, path=WORKING_DIRECTORY_PATH, value=folder)
        yield from (Path(place, name) for name in names if name.endswith(".py"))
