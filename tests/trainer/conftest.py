"""What the trainer's tests share: eight devices, a tiny text, trainer processes, compiled programs."""

import os
from collections.abc import Iterator
from pathlib import Path

import jax
import pytest

from tests.trainer.crew import Crew

# Tests compile much and compute little. Trainer processes inherit it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for compiled programs that all tests share: the tiny model compiles once a layout."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a folder with a little text."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        words = " ".join(f"word{(number * 37 + place * 11) % 101}" for place in range(120))
        (folder / f"part-{number}.txt").write_text(words)
    return folder
