"""JAX's own cache between hosts and a store: a program that one host compiled is loaded on another one."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.tiny import SECRET
from trainingjob_agent.jax_cache_folder import COMPLETE_SECONDS, list_complete
from trainingjob_agent.store_requests import synchronize_cache
from trainingjob_trainer.runtime import jax_cache
from trainingjob_trainer.runtime.jax_cache import BUCKET_FOLDER, main
from trainingjob_trainer.store import folder_limit

ENTRY, OTHER_ENTRY = (f"jit_train_step-{digit * 64}-cache" for digit in "ab")
PROGRAM = """
import jax

hits = []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event.endswith("cache_hits")))
jax.jit(lambda x: x * 2 + 1)(1.0).block_until_ready()
print(sum(hits))
"""


def write_entry(folder: Path, name: str = ENTRY, content: bytes = b"program", age: float = 60.0) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    modified = path.stat().st_mtime - age
    os.utime(path, (modified, modified))
    return path


def copy_between(root: object, *folders: Path, secret: str = SECRET) -> list[str]:
    return [main([str(root), str(folder)], secret) for folder in folders]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*"))


def test_a_host_gets_the_entries_of_another_one(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_entry(here)
    write_entry(there, OTHER_ENTRY)
    write_entry(here, "README")

    assert copy_between(tmp_path / "run", here, there, here) == ["done"] * 3

    assert names(there) == [ENTRY, OTHER_ENTRY]
    assert names(here) == ["README", ENTRY, OTHER_ENTRY]
    assert (there / ENTRY).read_bytes() == b"program"


@pytest.mark.parametrize(
    ("name", "content", "age"),
    [
        pytest.param(ENTRY, b"program", COMPLETE_SECONDS - 2.0, id="being-written"),
        pytest.param(ENTRY, b"", 60.0, id="empty"),
        pytest.param(ENTRY.replace("-cache", "-atime"), b"program", 60.0, id="time-of-use"),
        pytest.param(f"{'x' * 110}{ENTRY}", b"program", 60.0, id="long-name"),
    ],
)
def test_what_is_no_complete_entry_stays_on_its_host(tmp_path: Path, name: str, content: bytes, age: float) -> None:
    write_entry(tmp_path / "here", name, content, age)

    assert copy_between(tmp_path / "run", tmp_path / "here") == ["done"]
    assert names(tmp_path / "run") == []


def test_a_link_is_no_entry(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ENTRY).symlink_to(write_entry(tmp_path / "elsewhere"))

    assert list_complete(str(tmp_path / "here")) == frozenset()
    assert list_complete(str(tmp_path / "missing")) == frozenset()


def test_a_changed_object_and_those_of_others_are_not_loaded(tmp_path: Path) -> None:
    write_entry(tmp_path / "here")
    write_entry(tmp_path / "here", OTHER_ENTRY)
    copy_between(tmp_path / "run", tmp_path / "here")
    changed, intact = sorted((tmp_path / "run" / BUCKET_FOLDER).iterdir())
    changed.write_bytes(changed.read_bytes() + b"!")

    assert copy_between(tmp_path / "run", tmp_path / "there") == ["done"]
    assert names(tmp_path / "there") == [OTHER_ENTRY]
    assert intact.name.startswith(OTHER_ENTRY)

    assert copy_between(tmp_path / "run", tmp_path / "other-job", secret="another job's") == ["done"]
    with patch.object(jax_cache, "describe_processor", return_value=["another"]):
        assert copy_between(tmp_path / "run", tmp_path / "other-processor") == ["done"]
    assert names(tmp_path / "other-job") == names(tmp_path / "other-processor") == []


def test_both_sides_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (jax_cache, folder_limit):
        monkeypatch.setattr(module, "MAX_FOLDER_BYTES", 100)
    write_entry(tmp_path / "here", content=bytes(60))
    copy_between(tmp_path / "run", tmp_path / "here")
    write_entry(tmp_path / "there", OTHER_ENTRY, bytes(60), age=30.0)

    (problem,) = copy_between(tmp_path / "run", tmp_path / "there")

    assert problem.startswith(f"{tmp_path}/run/{BUCKET_FOLDER} has more than")
    assert names(tmp_path / "there") == [OTHER_ENTRY]
    write_entry(tmp_path / "there", content=bytes(60))
    copy_between(tmp_path / "run", tmp_path / "there")
    assert names(tmp_path / "there") == [OTHER_ENTRY]  # the older one is deleted


def test_a_folder_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run").touch()

    (problem,) = copy_between(tmp_path / "run", tmp_path / "here")

    assert "ot a directory" in problem or "must be a folder" in problem


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_another_host_loads_what_jax_compiled(scheme: str, object_servers: ObjectServers, tmp_path: Path) -> None:
    def run(folder: Path) -> str:
        environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(folder), "JAX_PLATFORMS": "cpu"}
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        return subprocess.run(
            [sys.executable, "-c", PROGRAM], check=True, capture_output=True, env=environment, text=True
        ).stdout.strip()

    with object_servers.environment(scheme):
        root = new_root(scheme)
        compiled = run(tmp_path / "here")
        for path in (tmp_path / "here").iterdir():
            os.utime(path, (0, 0))

        answers = [synchronize_cache(root, str(tmp_path / name), SECRET) for name in ("here", "there")]

        assert answers == ["", ""]
        assert compiled == "0"
        assert run(tmp_path / "there") != "0"
