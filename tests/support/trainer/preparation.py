"""What tests of the preparation share: a text of several files, and what writes its dataset."""

from pathlib import Path
from typing import Any

from tests.support.trainer.texts import grow
from tests.support.trainer.tiny import make_config, make_spec
from trainingjob_trainer.data import token_cache
from trainingjob_trainer.data.preparation.listed_files import list_dataset
from trainingjob_trainer.data.preparation.parts import PartWriter
from trainingjob_trainer.store.opening import open_store

LENGTH = {"training__sequenceLength": 4}


def write_text(tmp_path: Path, count: int = 3) -> None:
    grow(tmp_path / "text", **{f"{number}.txt": chr(97 + number) * 15 for number in range(count)})


def make_writer(tmp_path: Path, **changes: Any) -> PartWriter:
    (tmp_path / "checkpoints").mkdir(exist_ok=True)
    spec = make_config(make_spec(tmp_path / "checkpoints", tmp_path / "text", **LENGTH, **changes)).spec
    sources = token_cache._sources_by_dataset(spec)[0][1]
    return PartWriter(open_store(tmp_path / "checkpoints"), "0" * 64, list_dataset(sources), spec)
