"""What tests of text share: folders of files, tokenizers, and the index that comes of them."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_api.spec.data import TextSource
from trainingjob_trainer.data.dataset_writer import HostShare
from trainingjob_trainer.data.sources.source_files import SourceFiles
from trainingjob_trainer.data.sources.source_search import find_files
from trainingjob_trainer.data.token_cache import JobDatasets, prepare_datasets
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.store.opening import open_store

FIELD = "spec.data.train[0]"


def grow(root: Path, **files: str | bytes) -> Path:
    """Make files below a folder, by their paths; `-> x` is a link to x."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def find(path: Path | str, **options: Any) -> SourceFiles:
    return find_files(TextSource(name="text", path=os.fspath(path), **options), FIELD)


def names(found: SourceFiles) -> list[str]:
    return [file.name for file in found.files]


def skips(found: SourceFiles) -> dict[str, int]:
    return {skip.reason: skip.count for skip in found.skipped}


def index_of(tmp_path: Path, **changes: Any) -> JobDatasets:
    """Return the token datasets of the text in `text`, created by a job."""
    root = tmp_path / "checkpoints"
    root.mkdir(parents=True, exist_ok=True)
    config = make_config(make_spec(root, tmp_path / "text", **changes))
    return prepare_datasets(open_store(root), config, HostShare())


def dataset_folder(tmp_path: Path) -> Path:
    """Return the folder of the only token dataset of a job."""
    (folder,) = (path for path in (tmp_path / "checkpoints/data").iterdir() if path.is_dir())
    return folder


def make_tokenizer(path: Path, *words: str, unk: str = "<unk>", special: tuple[str, ...] = ()) -> tokenizers.Tokenizer:
    """Save a tokenizer with some tokens, split at blanks."""
    vocab = {word: place for place, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=unk))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(list(special))
    tokenizer.save(str(path))
    return tokenizer


def use(path: Path, **more: Any) -> dict[str, Any]:
    return {"tokenizer": {"type": "tokenizers", "path": str(path), **more}, "training__sequenceLength": 2}


def measure_peak[T](do: Callable[[], T]) -> tuple[T, int]:
    """Return what a function returns, and the most bytes that Python had allocated meanwhile."""
    tracemalloc.start()
    try:
        return do(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def fail(do: Callable[[], object]) -> TrainingError:
    with pytest.raises(TrainingError) as caught:
        do()
    return caught.value
