"""Compiled programs of foreign origin: none is unpickled, under any name."""

import logging
import os
import pickle
import zlib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import jax
import jax.numpy as jnp
import pytest

from tests.support.trainer.object_servers import ObjectServers, new_root
from tests.support.trainer.object_store import ObjectStore
from tests.support.trainer.tiny import SECRET, make_config, make_layout, make_spec
from tests.trainer.runtime.test_compile_cache import count, double, everywhere
from trainingjob_trainer.runtime import compile_cache, compile_cache_files
from trainingjob_trainer.runtime.compile_cache import (
    PROGRAM_FILE_NAME,
    SHARED_FOLDER,
    CompileCache,
    delete_other_programs,
)
from trainingjob_trainer.runtime.compile_cache_files import program_file_name, read_program, write_program
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store import folder_limit
from trainingjob_trainer.store.folder_limit import delete_least_recent, mark_used
from trainingjob_trainer.store.opening import open_store

OTHER = "another job's"


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self._proof = proof

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self._proof}",)


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def make_programs(root: Path, secret: str = SECRET) -> CompileCache:
    config = make_config(make_spec(root, root))
    return CompileCache(str(root / "kept"), root, config, make_layout(), ProcessGroup(0, 1), secret)


def run(programs: CompileCache) -> None:
    argument = jax.device_put(jnp.arange(4.0), everywhere())
    assert programs.compile_or_load("double", double, (argument,), 0)(argument).tolist() == [0.0, 2.0, 4.0, 6.0]


def shared_path(root: Path, programs: CompileCache) -> Path:
    return root / SHARED_FOLDER / programs.file_name("double")


def write_at(path: Path, content: bytes, secret: str) -> None:
    write_program(open_store(path.parent), path.name, content, secret)


def read_at(path: Path, secret: str) -> bytes:
    return read_program(open_store(path.parent), path.name, secret)


def plant(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def plant_link(path: Path, content: bytes) -> None:
    plant(path.parent / "elsewhere", content)
    path.symlink_to(path.parent / "elsewhere")


def plant_device(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("/dev/zero")


def plant_pipe(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)


ATTACKS: dict[str, Callable[[Path, bytes], None]] = {
    "as it was kept without a code": lambda path, bad: plant(path, zlib.compress(pickle.dumps(bad))),
    "a bare pickle": plant,
    "compressed": lambda path, bad: plant(path, zlib.compress(bad)),
    "behind a code of zeros": lambda path, bad: plant(path, bytes(32) + zlib.compress(bad)),
    "with the code of another job": lambda path, bad: write_at(path, zlib.compress(bad), OTHER),
    "with the code of no secret": lambda path, bad: write_at(path, zlib.compress(bad), ""),
    "shorter than a code": lambda path, bad: plant(path, b"short"),
    "a link": lambda path, bad: plant_link(path, zlib.compress(bad)),
    "a link to a device": lambda path, bad: plant_device(path),
    "a pipe": plant_pipe,
    "a folder": lambda path, bad: path.mkdir(parents=True),
}


@pytest.mark.parametrize("place", ["shared", "kept"])
@pytest.mark.parametrize("attack", ATTACKS)
def test_foreign_file_under_the_name_of_a_program_does_not_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, attack: str, place: str
) -> None:
    programs = make_programs(tmp_path)
    shared = shared_path(tmp_path, programs)
    path = shared if place == "shared" else tmp_path / "kept" / shared.name
    proof = tmp_path / "ran"
    ATTACKS[attack](path, pickle.dumps(Payload(proof)))

    run(programs)

    assert not proof.exists()
    assert count(caplog, "compiled a program name=double") == 1
    assert count(caplog, "not written by this job") + count(caplog, "cannot read a compiled program") >= 1


def test_the_payload_would_run_if_it_were_unpickled(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Payload(tmp_path / "ran")))  # noqa: S301

    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("kept", [0, 1, 31, 32, 33, -1])
def test_a_program_that_was_cut_short_is_not_loaded(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "double.program"
    write_at(path, b"content", SECRET)
    path.write_bytes(path.read_bytes()[:kept])

    assert read_at(path, SECRET) == b""


@pytest.mark.parametrize("place", range(39))
def test_a_program_of_which_a_bit_was_changed_is_not_loaded(tmp_path: Path, place: int) -> None:
    path = tmp_path / "double.program"
    write_at(path, b"content", SECRET)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)

    assert read_at(path, SECRET) == b""


def test_a_store_of_objects_keeps_programs_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stores: dict[str, ObjectStore] = {}
    monkeypatch.setattr(compile_cache, "open_store", lambda root: stores.setdefault(root, ObjectStore(root)))
    config = make_config(make_spec(Path("/unused"), Path("/unused")))
    for host in ("first", "second"):
        programs = CompileCache(f"mem://{host}", "mem://run", config, make_layout(), ProcessGroup(0, 1), SECRET)
        run(programs)
        programs.copy_to_shared("double")

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (1, 1)
    delete_other_programs("mem://run", set())
    assert [len(store.objects) for store in stores.values()] == [1, 0, 1]


def test_a_program_of_this_job_under_another_name_is_not_loaded(tmp_path: Path) -> None:
    write_at(tmp_path / "train-1.program", b"content", SECRET)
    (tmp_path / "train-1.program").rename(tmp_path / "train-2.program")

    assert read_at(tmp_path / "train-2.program", SECRET) == b""


def test_a_file_that_is_too_large_is_not_taken_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_cache_files, "MAX_PROGRAM_BYTES", 38)
    path = tmp_path / "double.program"
    write_at(path, b"content", SECRET)
    assert read_at(path, SECRET) == b""
    write_at(path, b"conten", SECRET)
    assert read_at(path, SECRET) == b"conten"


def test_jobs_that_share_a_folder_have_separate_programs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So is a job that takes over the folder of another: it has another secret."""
    for secret in (SECRET, OTHER, SECRET, OTHER):
        run(make_programs(tmp_path, secret))

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (2, 2)
    assert len(list((tmp_path / "kept").iterdir())) == 2
    assert program_file_name(SECRET, "train", "x") != program_file_name(OTHER, "train", "x")


def test_without_a_secret_nothing_is_kept_or_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    run(make_programs(tmp_path))
    run(make_programs(tmp_path, ""))
    run(make_programs(tmp_path, ""))

    assert count(caplog, "compiled a program") == 3
    assert count(caplog, "the operator sent no secret") == 2
    assert not make_programs(tmp_path, "").copy_to_shared("double")
    assert not make_programs(tmp_path, "").is_cached("double")


def test_foreign_program_is_neither_shared_nor_an_obstacle(tmp_path: Path) -> None:
    run(make_programs(tmp_path))
    programs = make_programs(tmp_path)
    plant(shared_path(tmp_path, programs), b"not a program")

    assert programs.copy_to_shared("double")
    assert read_at(shared_path(tmp_path, programs), SECRET)

    plant(tmp_path / "kept" / shared_path(tmp_path, programs).name, b"not a program")
    shared_path(tmp_path, programs).unlink()
    assert not programs.copy_to_shared("double")


def test_only_programs_are_deleted_from_the_folder_of_programs(tmp_path: Path) -> None:
    folder = tmp_path / SHARED_FOLDER
    wanted, old = folder / f"train-{'a' * 32}.program", folder / f"train-{'b' * 32}.program"
    left = folder / f".train-{'b' * 32}.program.host-1.17"
    others = [folder / "README.md", folder / "notes.program", folder / f"train-{'c' * 31}.program", folder / ".hidden"]
    for path in (wanted, old, left, *others):
        plant(path, b"")
    (folder / f"train-{'d' * 32}.program").mkdir()
    (folder / f"train-{'e' * 32}.program").symlink_to(tmp_path / "elsewhere")
    plant(tmp_path / "elsewhere", b"stays")

    delete_other_programs(str(tmp_path), {wanted.name})

    assert set(folder.iterdir()) == {wanted, *others, folder / f"train-{'d' * 32}.program"}
    assert (tmp_path / "elsewhere").exists()
    assert PROGRAM_FILE_NAME.fullmatch(program_file_name(SECRET, "train", "x"))
    delete_other_programs(str(tmp_path / "not there"), set())


def test_a_link_in_the_place_of_the_unfinished_file_is_not_written_through(tmp_path: Path) -> None:
    path = tmp_path / "double.program"
    plant(tmp_path / "precious", b"stays")
    (tmp_path / f".{path.name}.{os.uname().nodename}.{os.getpid()}").symlink_to(tmp_path / "precious")

    write_at(path, b"content", SECRET)

    assert (tmp_path / "precious").read_bytes() == b"stays"
    assert read_at(path, SECRET) == b"content"


def test_the_folder_of_a_host_is_bounded_by_deleting_what_was_not_used_for_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, foreign = tmp_path / "kept", tmp_path / "kept/notes.txt"
    folder.mkdir()
    foreign.write_bytes(bytes(5000))
    old, used = (folder / f"{name}-{'0' * 32}.program" for name in ("train", "evaluate"))
    for age, path in enumerate((used, old)):
        path.write_bytes(bytes(1000))
        os.utime(path, (1000 + age, 1000 + age))
    mark_used(str(folder), used.name)
    monkeypatch.setattr(folder_limit, "MAX_FOLDER_BYTES", 1 << 20)
    run(make_programs(tmp_path))
    assert old.exists()

    (written,) = set(folder.iterdir()) - {old, used, foreign}
    written.unlink()
    monkeypatch.setattr(folder_limit, "MAX_FOLDER_BYTES", 1500)
    delete_least_recent(str(folder), PROGRAM_FILE_NAME, 300)
    assert [path.exists() for path in (old, used, foreign)] == [False, True, True]

    folder.chmod(0o500)
    with patch.object(os, "unlink", side_effect=PermissionError(1, "Operation not permitted")):
        run(make_programs(tmp_path))  # trains without keeping less
    delete_least_recent(str(tmp_path / "missing"), PROGRAM_FILE_NAME, 300)
    folder.chmod(0o700)


def test_a_job_on_buckets_loads_programs_when_all_pods_are_replaced(
    object_servers: ObjectServers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with object_servers.environment("gs"):
        root = new_root("gs")
        config = make_config(make_spec(tmp_path, tmp_path))
        pods = [
            CompileCache(str(tmp_path / name), root, config, make_layout(), ProcessGroup(0, 1), SECRET)
            for name in ("old", "new", "poisoned")
        ]
        run(pods[0])
        assert pods[0].copy_to_shared("double")
        run(pods[1])
        assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (1, 1)

        store = compile_cache.open_shared(root)
        content = store.read(pods[0].file_name("double"), 1 << 20)
        store.write(pods[0].file_name("double"), (content[:-1] + bytes([content[-1] ^ 1]),))
        run(pods[2])
        assert (count(caplog, "compiled a program"), count(caplog, "was not written by this job")) == (2, 1)
