"""Large files of lines: several processes read their pieces, and the dataset is that of the whole file."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.preparation import LENGTH, make_writer
from tests.support.trainer.texts import dataset_folder, fail, grow, index_of
from trainingjob_api.spec.data import TextSource
from trainingjob_trainer.data import dataset_writer
from trainingjob_trainer.data.preparation import listed_files, worker_pool
from trainingjob_trainer.data.preparation.listed_files import Part, list_dataset
from trainingjob_trainer.data.preparation.part_progress import PartProgress
from trainingjob_trainer.data.preparation.preparation_tracker import PreparationTracker, ignore_preparation
from trainingjob_trainer.data.preparation.worker_pool import write_parts
from trainingjob_trainer.data.sources import file_chunks
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.sources.source_files import SourceFile

WORDS = ["one", "zwölf", "", "日本語", "🙂" * 9, "two words", "x" * 200, "last"]
RECORDS = [json.dumps({"text": word}, ensure_ascii=False) for word in WORDS]
SOURCE = {"name": "text", "format": "jsonl"}


def divide(tmp_path: Path, **sizes: int) -> tuple[Part, ...]:
    grow(tmp_path, **{name.replace("__", "."): b"\n" * size for name, size in sizes.items()})
    source = TextSource(name="text", path=str(tmp_path), format="jsonl", pattern="*")
    return list_dataset([("spec.data.train[0]", source)]).parts


def piece(number: int, begin: int, end: int) -> Part:
    return Part(range(number, number + 1), range(begin, end))


def account(number: int) -> Part:
    return Part(range(number, number + 1), is_account=True)


@pytest.mark.usefixtures("small_parts")
def test_a_large_file_is_divided_into_equal_pieces_after_its_account(tmp_path: Path) -> None:
    assert divide(tmp_path / "one", a__jsonl=20) == (Part(range(1)),)
    assert divide(tmp_path / "two", a__jsonl=21) == (account(0), piece(0, 0, 11), piece(0, 11, 21))
    assert divide(tmp_path / "compressed", a__gz=90, b__jsonl=1) == (Part(range(1)), Part(range(1, 2)))
    assert divide(tmp_path / "among others", a__jsonl=5, b__jsonl=5, c__jsonl=41, d__jsonl=0, e__jsonl=9) == (
        Part(range(2)),
        account(2),
        piece(2, 0, 14),
        piece(2, 14, 28),
        piece(2, 28, 41),
        Part(range(3, 5)),
    )


@pytest.mark.parametrize("chunk", [1, 13, 1 << 20])
@pytest.mark.parametrize("ending", ["", "\n", "\n\n\n"])
def test_each_line_begins_in_one_span(tmp_path: Path, chunk: int, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_chunks, "CHUNK_BYTES", chunk)
    content = ("\n".join(RECORDS) + ending).encode()
    (tmp_path / "text").write_bytes(content)
    for step in (1, 2, 3, 17, 100, 1000):
        with (tmp_path / "text").open("rb") as file:
            spans = [range(first, min(first + step, len(content))) for first in range(0, len(content), step)]
            pieces = [b"".join(file_chunks.read_lines_of(file, span)) for span in spans]

        assert b"".join(pieces) == content
        assert all(one.endswith(b"\n") for one in pieces[:-1] if one and one is not [*filter(None, pieces)][-1])


CASES: dict[str, dict[str, Any]] = {
    "concatenated documents": {},
    "isolated documents": {"data__packing": {"isolateDocuments": True}},
    "bad records": {"data__train": [{**SOURCE, "onBadRecord": "skip"}]},
    "prompts without weight": {
        "data__train": [{**SOURCE, "prompt": "text", "completion": "text"}],
        "objective": {"type": "sft"},
    },
}


@pytest.mark.thorough
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
@pytest.mark.parametrize("size", [7, 20, 90])
def test_pieces_give_the_dataset_of_the_whole_file(
    tmp_path: Path, changes: dict[str, Any], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = ["{", "null", "", "BZh", "BZh"] if "skip" in str(changes) else [""]
    lines = [*RECORDS, *bad, *RECORDS[::-1], *bad]
    grow(tmp_path / "text", **{"a.jsonl": "\ufeff" + "\n".join(lines), "b.jsonl": RECORDS[0], "c.jsonl": RECORDS[3]})
    given = {"data__train": [SOURCE]} | changes
    given["data__train"] = [{**given["data__train"][0], "path": str(tmp_path / "text")}]
    whole = index_of(tmp_path, **given, **LENGTH)
    before = {path.name: path.read_bytes() for path in dataset_folder(tmp_path).iterdir()}
    (tmp_path / "checkpoints").rename(tmp_path / "before")
    monkeypatch.setattr(listed_files, "PART_BYTES", size)
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)

    divided = index_of(tmp_path, **given, **LENGTH)

    assert {path.name: path.read_bytes() for path in dataset_folder(tmp_path).iterdir()} == before
    assert divided.report == whole.report
    assert divided.train.dataset_hash == whole.train.dataset_hash


@pytest.mark.thorough
@pytest.mark.usefixtures("small_parts")
def test_several_processes_read_one_file(tmp_path: Path, processes: list[subprocess.Popen[bytes]]) -> None:
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(RECORDS)})
    source = {**SOURCE, "path": str(tmp_path / "text")}

    made = index_of(tmp_path, data__train=[source], **LENGTH)

    assert len(processes) == 2
    assert made.train.tokens.tolist() == [number for word in filter(None, WORDS) for number in (*word.encode(), 256)]
    assert made.report.sources[0].documents == len(WORDS) - 1


def open_files(folder: Path) -> list[Path]:
    """Return the files below a folder that this process has open."""
    found = [Path(fd).readlink() for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()]
    return [path for path in found if path.is_relative_to(folder)]


@pytest.mark.parametrize("line", ["{}", "{", '{"text": "\udcff"}'], ids=["no field", "no JSON", "no UTF-8"])
def test_the_error_of_a_piece_is_that_of_the_whole_file(
    tmp_path: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [*RECORDS * 20, line, *RECORDS, line]
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(lines).encode(errors="surrogateescape")})
    source = {**SOURCE, "path": str(tmp_path / "text")}
    want = fail(lambda: index_of(tmp_path, data__train=[source], **LENGTH))
    assert open_files(tmp_path) == [], "although the error holds the frames of its readers"
    monkeypatch.setattr(listed_files, "PART_BYTES", 100)
    writer = make_writer(tmp_path, data__train=[source])
    last = len(writer.manifest.parts) - 1

    error = fail(lambda: writer.write(last))

    assert str(error) == str(want)
    assert ("line 161" in str(error)) != (line == '{"text": "\udcff"}')


def test_a_piece_without_a_valid_record_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listed_files, "PART_BYTES", 20)
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(["{"] * 30)})
    source = {**SOURCE, "path": str(tmp_path / "text"), "onBadRecord": "skip"}
    writer = make_writer(tmp_path, data__train=[source])

    writer.write(1)
    error = fail(lambda: writer.write(0))

    assert "must have a valid record, but its 30 records are bad" in str(error)


@pytest.mark.usefixtures("small_parts")
def test_pieces_that_are_complete_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(RECORDS)})
    writer = make_writer(tmp_path, data__train=[{**SOURCE, "path": str(tmp_path / "text")}])
    monkeypatch.setattr(worker_pool, "count_cpus", lambda: 1)
    parts, read = range(len(writer.manifest.parts)), list[range | None]()
    write_parts(writer, parts[:3], lambda *_: None)

    def note(file: SourceFile) -> Any:
        read.append(file.span)
        return read_documents(file)

    monkeypatch.setattr("trainingjob_trainer.data.preparation.parts.read_documents", note)
    dataset_writer.create_dataset(writer, dataset_writer.HostShare())

    assert read == [part.span for part in writer.manifest.parts[3:]]
    assert not [path for path in (tmp_path / "checkpoints/data" / writer.folder).iterdir() if path.is_dir()]


@pytest.mark.usefixtures("small_parts")
def test_parts_of_a_trainer_that_divides_no_file_are_ignored_and_deleted(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(RECORDS)})
    writer = make_writer(tmp_path, data__train=[{**SOURCE, "path": str(tmp_path / "text")}])
    former = tmp_path / "checkpoints/data" / writer.folder / "parts"
    grow(former, **{"00001.json": '{"files": [], "counts": {}, "answerCounts": {}}'})

    assert writer.list_complete_parts() == []
    assert not writer.has_part(1)
    writer.delete_parts()
    assert not former.exists()


@pytest.mark.usefixtures("small_parts")
def test_the_documents_of_a_divided_file_count_once(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.jsonl": "\n".join(RECORDS)})
    writer = make_writer(tmp_path, data__train=[{**SOURCE, "path": str(tmp_path / "text")}])
    for part in range(len(writer.manifest.parts)):
        writer.write(part)

    tracker = PreparationTracker([writer], ignore_preparation)

    size = (tmp_path / "text/a.jsonl").stat().st_size
    tokens = sum(len(word.encode()) + 1 for word in WORDS if word)
    assert tracker._sum() == PartProgress(size, len(WORDS) - 1, tokens)
