"""What every store guarantees: a new implementation joins `OPENERS` and passes the same tests."""

import mmap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.object_store import ObjectStore
from trainingjob_api.base import StoreUri
from trainingjob_trainer.store import posix
from trainingjob_trainer.store.opening import STORES, open_store
from trainingjob_trainer.store.port import Entry, Store

OPENERS: dict[str, Callable[[Path], Store]] = {
    "posix": lambda folder: open_store(folder / "root"),
    "objects in memory": lambda folder: ObjectStore(),
}


@pytest.fixture(params=[*OPENERS, *SCHEMES])
def store(request: pytest.FixtureRequest, tmp_path: Path, object_servers: ObjectServers) -> Iterator[Store]:
    if request.param in OPENERS:
        yield OPENERS[request.param](tmp_path)
        return
    with object_servers.environment(request.param):
        yield open_store(new_root(request.param))


def test_the_api_allows_the_roots_that_a_store_serves() -> None:
    uri = TypeAdapter(StoreUri)
    examples = {"": "/shared/run", "gs": "gs://bucket/run", "s3": "s3://bucket/run", "file": "file:///shared/run"}

    for scheme, root in examples.items():
        if scheme in STORES:
            assert open_store(uri.validate_python(root)).root == root
            continue
        with pytest.raises(ValidationError):
            uri.validate_python(root)
    assert STORES.keys() <= examples.keys()


@pytest.mark.parametrize("name", ["OWNER", "lineage-0/20/array/0"])
def test_written_content_is_read(store: Store, name: str) -> None:
    store.write(name, (b"num", b"", b"bers"))

    assert store.read(name, 7) == b"numbers"
    assert b"".join(store.read_chunks(name)) == b"numbers"
    assert store.size(name) == 7


def test_an_object_may_be_empty(store: Store) -> None:
    store.write("empty", ())

    assert (store.read("empty", 0), store.size("empty"), list(store.read_chunks("empty"))) == (b"", 0, [])


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (2, 5), (3, 9), (7, 9), (4, 4)])
def test_a_range_of_an_object_is_read(store: Store, start: int, stop: int) -> None:
    store.write("data/weights", (b"numbers",))

    assert store.read_range("data/weights", start, stop) == b"numbers"[start:stop]


def test_a_large_range_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix, "MAX_READ_BYTES", 3)
    store = open_store(tmp_path)
    store.write("weights", (b"numbers",))

    assert store.read_range("weights", 1, 20) == b"umbers"


def test_an_object_may_be_mapped_into_memory(store: Store) -> None:
    store.write("data/tokens", (b"num", b"bers"))

    with store.open_local("data/tokens") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        store.write("data/tokens", (b"others!",))
    assert mapped[:] == b"numbers"
    with pytest.raises(FileNotFoundError):
        store.open_local("data/missing")


def test_a_write_replaces_the_object(store: Store) -> None:
    store.write("a", (b"long content",))
    store.write("a", (b"new",))

    assert store.read("a", 100) == b"new"


def test_failed_write_preserves_the_old_content(store: Store) -> None:
    def fail() -> Iterator[bytes]:
        yield b"half"
        raise ValueError("the source is damaged")

    store.write("a", (b"old",))
    for name in ("a", "new"):
        with pytest.raises(ValueError, match="the source is damaged"):
            store.write(name, fail())

    assert store.read("a", 100) == b"old"
    assert store.list_folder() == [Entry("a", is_folder=False)]


def test_a_missing_object_is_not_read(store: Store) -> None:
    store.write("folder/a", (b"1",))

    for read in (
        lambda: store.read("folder/b", 9),
        lambda: list(store.read_chunks("other/a")),
        lambda: store.read_range("other/a", 0, 1),
        lambda: store.size("b"),
    ):
        with pytest.raises(FileNotFoundError):
            read()


def test_an_object_is_read_up_to_a_limit(store: Store) -> None:
    store.write("a", (b"12345",))

    with pytest.raises(ValueError, match="a has more than 4 bytes"):
        store.read("a", 4)
    assert b"".join(store.read_chunks("a", 3)) == b"1234"
    assert b"".join(store.read_chunks("a", 5)) == b"12345"


def test_an_object_is_created_once(store: Store) -> None:
    store.create_exclusive("folder/a", b"first")

    with pytest.raises(FileExistsError):
        store.create_exclusive("folder/a", b"second")
    assert store.read("folder/a", 100) == b"first"


def test_of_many_that_create_an_object_one_succeeds(store: Store) -> None:
    created, start = [], threading.Barrier(8)

    def create(number: int) -> None:
        start.wait()
        try:
            store.create_exclusive("a/b", str(number).encode())
        except FileExistsError:
            return
        created.append(number)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [store.read("a/b", 9)] == [str(number).encode() for number in created]


@pytest.mark.parametrize("is_current", [False, True])
def test_a_list_has_objects_and_folders_directly_below(store: Store, is_current: bool) -> None:
    for name in ("b", "a/1", "a/deep/2", "c/3"):
        store.write(name, (b"x",))

    assert store.list_folder(is_current=is_current) == [Entry("a", True), Entry("b", False), Entry("c", True)]
    assert store.list_folder("a", is_current=is_current) == [Entry("1", False), Entry("deep", True)]


def test_a_folder_that_does_not_exist_is_empty(store: Store) -> None:
    assert (store.list_folder(), store.list_folder("a"), store.list_files("a")) == ([], [], [])


def test_an_object_is_not_listed_as_a_folder(store: Store) -> None:
    store.write("a", (b"x",))

    with pytest.raises(NotADirectoryError, match="a must be a folder itself, not a link or a file"):
        store.list_folder("a")


def test_all_objects_below_a_folder_are_listed(store: Store) -> None:
    for name in ("step/array/10", "step/array/2", "step/metadata", "step2/other"):
        store.write(name, (b"x",))

    assert store.list_files("step") == ["array/10", "array/2", "metadata"]


def test_a_deleted_object_is_gone(store: Store) -> None:
    store.write("a/b", (b"x",))
    store.write("a/c", (b"x",))

    store.delete("a/b")
    store.delete("a/b")

    assert store.list_files("a") == ["c"]
    store.create_exclusive("a/b", b"again")


def test_a_deleted_folder_is_gone_and_others_stay(store: Store) -> None:
    for name in ("20/array/0", "20/metadata", "20.quarantined", "200/metadata"):
        store.write(name, (b"x",))

    store.delete_tree("20")
    store.delete_tree("20")

    assert [entry.name for entry in store.list_folder()] == ["20.quarantined", "200"]
    store.write("20/array/0", (b"again",))


OUTSIDE = ["../a", "/etc/passwd", "a/../../b", "..", ".", "a//b", "a/", "a\x00b", "\ud800"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_store(store: Store, name: str) -> None:
    for act in (
        lambda: store.read(name, 9),
        lambda: list(store.read_chunks(name)),
        lambda: store.read_range(name, 0, 1),
        lambda: store.size(name),
        lambda: store.write(name, (b"x",)),
        lambda: store.create_exclusive(name, b"x"),
        lambda: store.delete(name),
        lambda: store.delete_tree(name),
    ):
        with pytest.raises(ValueError, match="is not the name of a file below the folder"):
            act()


def test_libraries_get_a_location_below_the_root(store: Store) -> None:
    assert store.locate("lineage-0/20").startswith(store.root)
    assert store.locate("lineage-0/20").endswith("/lineage-0/20")
