"""What only a file system can do to a store: links, devices, files in the place of folders, and cached listings."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.checkpoint.test_foreign import NOT_FILES
from trainingjob_trainer.store.port import Entry
from trainingjob_trainer.store.posix import PosixStore


@pytest.fixture
def store(tmp_path: Path) -> PosixStore:
    return PosixStore(tmp_path)


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    store = PosixStore(tmp_path / "link")

    store.write("a/b", (b"x",))

    assert (store.read("a/b", 1), store.list_folder(), store.list_files("a")) == (b"x", [Entry("a", True)], ["b"])
    assert (tmp_path / "real/a/b").exists()


@pytest.mark.parametrize("make", NOT_FILES.values(), ids=NOT_FILES)
def test_irregular_file_is_not_read(store: PosixStore, tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "a")

    with pytest.raises(ValueError, match="a is not a regular file"):
        store.read("a", 100)
    with pytest.raises(ValueError, match="a is not a regular file"):
        store.size("a")


@pytest.mark.parametrize("make", [make for make in NOT_FILES.values() if make is not os.mkdir])
def test_a_folder_with_a_link_or_a_device_is_not_listed(
    store: PosixStore, tmp_path: Path, make: Callable[[Path], object]
) -> None:
    (tmp_path / "step/array").mkdir(parents=True)
    make(tmp_path / "step/array/0")

    with pytest.raises(ValueError, match="array/0 is neither a file nor a folder"):
        store.list_files("step")
    assert store.list_folder("step/array") == [Entry("0", is_folder=False)]


def test_a_link_is_no_folder(store: PosixStore, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/precious").touch()
    (tmp_path / "link").symlink_to("outside")

    assert Entry("link", is_folder=False) in store.list_folder()
    with pytest.raises(NotADirectoryError):
        store.list_folder("link")
    with pytest.raises(OSError, match="symbolic link"):
        store.delete_tree("link")
    store.delete("link")
    assert (tmp_path / "outside/precious").exists()


def test_a_write_replaces_a_link_and_not_the_file_behind_it(store: PosixStore, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("stays")
    (tmp_path / "link").symlink_to("precious")

    store.write("link", (b"new",))

    assert (tmp_path / "precious").read_text() == "stays"
    assert store.read("link", 9) == b"new"


def test_a_file_in_the_place_of_a_folder_is_no_existing_object(store: PosixStore, tmp_path: Path) -> None:
    (tmp_path / "lineage-0").touch()

    for act in (lambda: store.create_exclusive("lineage-0/a", b""), lambda: store.write("lineage-0/a", ())):
        with pytest.raises(NotADirectoryError):
            act()


def test_a_creation_that_fails_leaves_nothing(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as full:
        full.setattr("trainingjob_trainer.store.posix.os.fsync", refuse)
        with pytest.raises(OSError, match="full"):
            store.create_exclusive("lineage-0/20/writer.json", b"x")

    assert [path.name for path in tmp_path.rglob("*")] == ["lineage-0"]


def test_a_creation_that_fails_leaves_other_files(
    store: PosixStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write("folder/other", (b"stays",))

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, "broken")

    with monkeypatch.context() as broken:
        broken.setattr("trainingjob_trainer.store.posix.os.fsync", refuse)
        with pytest.raises(OSError, match="broken"):
            store.create_exclusive("folder/a", b"x")

    assert store.list_files("folder") == ["other"]


def test_a_current_list_changes_the_folder_first(store: PosixStore, tmp_path: Path) -> None:
    """A client of NFS drops its cached listing of a folder when it creates a file there."""
    os.utime(tmp_path, (0, 0))

    store.list_folder()
    assert tmp_path.stat().st_mtime == 0
    store.list_folder(is_current=True)

    assert tmp_path.stat().st_mtime > 0
    assert list(tmp_path.iterdir()) == []
