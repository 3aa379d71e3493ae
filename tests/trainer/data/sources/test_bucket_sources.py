"""Sources in buckets: the same documents and reports as from a folder, and errors that name what to do."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from pyarrow import ipc, parquet

from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.texts import fail, find, grow, index_of, names, skips
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.data.preparation import listed_files
from trainingjob_trainer.data.sources.compression import zstd
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.token_cache import JobDatasets
from trainingjob_trainer.store import object_file, retry
from trainingjob_trainer.store.opening import open_store

TEXTS = ["one", "zwölf", "日本語" * 40, "last"]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS).encode()


class Uploads(NamedTuple):
    """A folder of a bucket, and a folder with the same files."""

    root: str
    folder: Path

    def add(self, **files: str | bytes) -> None:
        """Write files, by their paths, to both."""
        grow(self.folder, **files)
        for name in files:
            open_store(self.root).write(name, ((self.folder / name).read_bytes(),))


@pytest.fixture(params=SCHEMES)
def uploads(request: pytest.FixtureRequest, object_servers: ObjectServers, tmp_path: Path) -> Iterator[Uploads]:
    with object_servers.environment(request.param):
        yield Uploads(new_root(request.param), tmp_path / "files")


def write_table() -> bytes:
    file = io.BytesIO()
    parquet.write_table(pa.table({"id": list(range(len(TEXTS))), "text": TEXTS}), file, row_group_size=2)
    return file.getvalue()


def write_arrow(*, is_stream: bool) -> bytes:
    file, table = io.BytesIO(), pa.table({"text": TEXTS})
    with (ipc.new_stream if is_stream else ipc.new_file)(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def write_records(folder: Path) -> bytes:
    writer = ArrayRecordWriter(str(folder / "records"), "group_size:1")
    for text in TEXTS:
        writer.write(text.encode())
    writer.close()
    return (folder / "records").read_bytes()


def write_ids() -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(1000, dtype=np.uint16))
    return file.getvalue()


FORMATS: dict[str, tuple[str, Any]] = {
    "text/a.txt": ("text", "a text\n" * 90),
    "compressed/a.jsonl.zst": ("jsonl", zstd.compress(LINES)),
    "lines/a.jsonl": ("jsonl", LINES),
    "table/a.parquet": ("parquet", write_table()),
    "stream/a.arrow": ("arrow", write_arrow(is_stream=True)),
    "file/a.arrow": ("arrow", write_arrow(is_stream=False)),
    "ids/a.npy": ("tokens", write_ids()),
}


def test_each_format_has_the_documents_of_a_folder(
    uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_file, "READ_BYTES", 512)
    files = FORMATS | {"records/a.array_record": ("arrayRecord", write_records(tmp_path))}
    uploads.add(**{name: content for name, (_, content) in files.items()})

    for name, (kind, _) in files.items():
        (there,), (here,) = (
            find(f"{root}/{name.partition('/')[0]}", format=kind, pattern="*").files
            for root in (uploads.root, uploads.folder)
        )
        assert list(read_documents(there)) == list(read_documents(here)) != [], name


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pattern": "*.txt"},
        {"pattern": "**/*.{txt,md}"},
        {"pattern": "part-{1..2}/*"},
        {"pattern": "*/?.txt", "exclude": ["part-1", "**/b.txt"]},
    ],
)
def test_a_bucket_is_searched_like_a_folder(uploads: Uploads, options: dict[str, Any]) -> None:
    found = ("a.txt", "part-1/a.txt", "part-1/b.txt", "part-2/c.txt", "part-2/deep/d.txt", ".git/e.txt", "notes.md")
    uploads.add(**dict.fromkeys(found, "x"))
    open_store(uploads.root)._bucket.put(f"{uploads.root.split('/', 3)[3]}/part-2/", b"", "")  # type: ignore[attr-defined]  # an empty object, as consoles create it

    there, here = find(f"{uploads.root}/", **options), find(uploads.folder, **options)

    assert (names(there), skips(there)) == (names(here), skips(here))


def test_a_uri_may_name_a_file(uploads: Uploads) -> None:
    uploads.add(**{"a/b.txt": "text", "a/b.txt.old": "other"})

    found = find(f"{uploads.root}/a/b.txt", pattern="*.md")

    assert (names(found), found.unused) == (["b.txt"], "pattern")
    assert list(read_documents(found.files[0])) == [b"text"]


def prepare(tmp_path: Path, uploads: Uploads, **more: Any) -> JobDatasets:
    source = {"name": "text", "path": uploads.root, **more}
    held_out = {"name": "held-out", "path": f"{uploads.root}/held", "everySteps": 1, "numBatches": 1}
    return index_of(tmp_path, training__sequenceLength=4, data__train=[source], evaluation=[held_out])


def test_a_job_reads_its_text_from_a_bucket(uploads: Uploads, tmp_path: Path) -> None:
    uploads.add(**{"a.txt": "a" * 15, "b.txt": "b" * 30, "held/c.txt": "c" * 9})

    made = prepare(tmp_path / "one", uploads, pattern="*.txt")

    assert bytes(made.train.tokens[:15].tolist()) == b"a" * 15
    assert [(one.name, one.files, one.documents) for one in made.report.sources] == [("text", 2, 2), ("held-out", 1, 1)]
    same = prepare(tmp_path / "two", uploads, pattern="*.txt")
    uploads.add(**{"b.txt": "d" * 30})
    other = prepare(tmp_path / "three", uploads, pattern="*.txt")
    assert same.train.dataset_hash == made.train.dataset_hash != other.train.dataset_hash


@pytest.mark.thorough
def test_processes_share_a_large_file(uploads: Uploads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploads.add(**{"a.jsonl": LINES * 3, "held/c.txt": "c" * 9})
    whole = prepare(tmp_path / "whole", uploads, format="jsonl")

    monkeypatch.setattr(listed_files, "PART_BYTES", 50)
    divided = prepare(tmp_path / "divided", uploads, format="jsonl")

    assert np.array_equal(whole.train.tokens, divided.train.tokens)


def test_an_object_that_changes_while_a_job_starts_is_noticed(uploads: Uploads) -> None:
    for kind, content in (("text", "old text"), ("parquet", write_table()), ("tokens", write_ids())):
        uploads.add(a=content)
        (file,) = find(f"{uploads.root}/a", format=kind).files
        uploads.add(a=content + content[:1])

        error = fail(lambda file=file: list(read_documents(file)))  # type: ignore[misc]

        assert (str(error), error.path, error.fatal) == (
            f"{uploads.root}/a changed while it was read. Do not change the text while a job starts.",
            "spec.data.train[0].path",
            False,
        )


def test_an_object_that_is_deleted_while_a_job_starts_ends_the_job(uploads: Uploads) -> None:
    uploads.add(**{"a.txt": "text"})
    (file,) = find(uploads.root).files
    open_store(uploads.root).delete("a.txt")

    error = fail(lambda: list(read_documents(file)))

    assert "a.txt cannot be read: No such file or directory" in str(error)
    assert error.fatal


@pytest.mark.parametrize("name", ["", "nothing", "nothing/", "nothing.txt"])
def test_a_folder_without_objects_ends_the_job(uploads: Uploads, name: str) -> None:
    error = fail(lambda: find(f"{uploads.root}/{name}", pattern="*.txt"))

    assert str(error).startswith(f"no file below {f'{uploads.root}/{name}'.rstrip('/')} matches `*.txt`. It is empty.")
    assert (error.reason, error.path, error.fatal) == (FailureReason.DATA, "spec.data.train[0].pattern", True)


def test_other_files_are_named_where_none_matches(uploads: Uploads) -> None:
    uploads.add(**{"a.jsonl": LINES})

    assert "It has 1 file: a.jsonl" in str(fail(lambda: find(uploads.root)))


@pytest.mark.parametrize("path", ["", "/text", "/text/"])
def test_a_missing_bucket_ends_the_job(uploads: Uploads, path: str) -> None:
    scheme = uploads.root.partition("://")[0]

    error = fail(lambda: find(f"{scheme}://missing{path}"))

    assert f"{scheme}://missing" in str(error)
    assert "does not exist" in str(error)
    assert str(error).endswith(
        "Check the name of the bucket, the endpoint, and the rights of spec.runtime.serviceAccountName."
    )
    assert (error.path, error.value, error.fatal) == ("spec.data.train[0].path", f"{scheme}://missing{path}", True)


@pytest.mark.parametrize(
    ("fault", "words", "is_fatal"),
    [
        ("denied", "no permission", True),
        ("expired", "refuses the credentials", True),
        ("html", "is a web page", True),
        ("503", "is overloaded", False),
        ("reset", "failed", False),
    ],
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_failing_bucket_is_explained(
    object_servers: ObjectServers, scheme: str, fault: str, words: str, is_fatal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 0.05)
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)
    root, proxy = new_root(scheme), object_servers.proxy(scheme)
    with object_servers.environment(scheme):
        open_store(root).write("a.txt", (b"text",))
    with object_servers.environment(scheme, proxy.url):
        (file,) = find(root).files
        proxy.choose = lambda _method, _path: fault
        failures = [fail(lambda: find(root)), fail(lambda: list(read_documents(file)))]
        proxy.stop()

    for error, begin in zip(failures, ("cannot be searched: ", "/a.txt cannot be read: "), strict=True):
        assert begin in str(error)
        assert words in str(error)
        assert (error.path, error.fatal) == ("spec.data.train[0].path", is_fatal)
