"""ArrayRecord: records of text and of tf.train.Example, and files and records that are neither."""

from pathlib import Path
from typing import Any

import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from hypothesis import given
from hypothesis import strategies as st

from tests.support.trainer.texts import fail, find, grow, index_of
from trainingjob_trainer.data.sources.examples import parse_example
from trainingjob_trainer.data.sources.readers import read_documents


def field(number: int, content: bytes) -> bytes:
    """Return a field of a protocol buffer with a length."""
    size, written = len(content), b""
    while size >= 0x80:
        written, size = written + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + written + bytes([size]) + content


def feature(name: str, content: bytes) -> bytes:
    return field(1, field(1, name.encode()) + field(2, content))


def texts(*values: str | bytes) -> bytes:
    return field(1, b"".join(field(1, one.encode() if isinstance(one, str) else one) for one in values))


def example(**features: str | bytes) -> bytes:
    """Return an Example, whose features hold one text each."""
    return field(1, b"".join(feature(name, texts(one)) for name, one in features.items()))


def write(path: Path, *records: bytes, group: int = 1) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = ArrayRecordWriter(str(path), f"group_size:{group}")
    for record in records:
        writer.write(record)
    writer.close()
    return path


def read(tmp_path: Path, *records: bytes, **options: Any) -> list[bytes]:
    write(tmp_path / "a.array_record", *records)
    return list(read_documents(find(tmp_path, format="arrayRecord", **options).files[0]))


@pytest.mark.parametrize("group", [1, 7, 1000])
def test_each_record_of_text_is_a_document(tmp_path: Path, group: int) -> None:
    records = [f"déjà {number}".encode() for number in range(100)]
    write(tmp_path / "text/c4.array_record-00000-of-00002", *records, group=group)
    write(tmp_path / "text/c4.array_record-00001-of-00002", b"", b"last")
    source = {"name": "text", "format": "arrayRecord", "path": str(tmp_path / "text")}

    made = index_of(tmp_path, training__sequenceLength=2, data__train=[source])

    report = made.report.sources[0]
    ids = made.train.tokens.tolist()
    assert (report.files, report.documents, [one.count for one in report.skipped]) == (2, 101, [1])
    assert bytes(one if one < 256 else 0 for one in ids) == b"\0".join([*records, b"last", b""])


def test_a_feature_of_an_example_is_a_document(tmp_path: Path) -> None:
    records = example(text="one", url="x"), example(url="x", text="é" * 99)

    assert read(tmp_path, *records, column="text") == [b"one", ("é" * 99).encode()]
    assert read(tmp_path, example(**{"a.b": "dots"}), column="a.b") == [b"dots"]


def test_features_are_a_prompt_and_its_completion(tmp_path: Path) -> None:
    assert read(tmp_path, example(q="a", a="b"), prompt="q", completion="a") == [b'{"prompt": "a", "completion": "b"}']


GOOD = example(text="one")
BAD: dict[str, tuple[bytes, dict[str, Any], str]] = {
    "an Example as text": (GOOD, {}, "record 2 is a tf.train.Example with `text`. Set `column`"),
    "no UTF-8": (b"\xff", {}, "record 2 must be UTF-8, but byte 0 is 0xff"),
    "NUL": (b"a\0", {}, "record 2 must not contain NUL"),
    "text as an Example": (b"the cat", {"column": "text"}, "record 2 must be a tf.train.Example. Remove `column`"),
    "an empty record": (b"", {"column": "text"}, "record 2 must be a tf.train.Example"),
    "a truncated Example": (GOOD[:-1], {"column": "text"}, "record 2 must be a tf.train.Example"),
    "no such feature": (example(body="a"), {"column": "text"}, "record 2 has no field `text`. It has `body`"),
    "two texts": (
        field(1, feature("text", texts("a", "b"))),
        {"column": "text"},
        "record 2: `text` must hold one text, but holds 2 texts",
    ),
    "integers": (field(1, feature("text", field(3, b"\x0a\x01\x05"))), {"column": "text"}, "but holds integers"),
    "floats": (field(1, feature("text", field(2, b""))), {"column": "text"}, "but holds floats"),
    "nothing": (field(1, feature("text", b"")), {"column": "text"}, "but holds nothing"),
    "no UTF-8 in an Example": (
        example(text=b"a\xff"),
        {"column": "text"},
        "record 2: `text` must be UTF-8, but byte 1",
    ),
    "no completion": (example(q="a"), {"prompt": "q", "completion": "a"}, "record 2 has no field `a`"),
}


@pytest.mark.parametrize(("record", "options", "words"), BAD.values(), ids=BAD)
def test_a_bad_record_fails_or_is_skipped(tmp_path: Path, record: bytes, options: dict[str, Any], words: str) -> None:
    first = example(q="one", a="!") if "prompt" in options else GOOD if options else b"one"

    error = fail(lambda: read(tmp_path, first, record, **options))
    kept = read(tmp_path, first, record, **options, onBadRecord="skip")

    assert words in str(error)
    assert "a.array_record" in str(error)
    assert len(kept) == 1


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 255]) + content[place + 1 :]


FILES = {
    "truncated": (lambda content: content[:-20], "must be complete ArrayRecord data, but cannot be read: "),
    "empty": (lambda _: b"", "must be complete ArrayRecord data"),
    "text": (lambda _: b"the cat", "must be complete ArrayRecord data"),
    "a flipped bit in a header": (lambda content: flip(content, 70), "Corrupted Riegeli/records file"),
    "a flipped bit in a record": (lambda content: flip(content, 107), "must be complete ArrayRecord data"),
    "Parquet": (lambda _: b"PAR1\x15\x04", "must be ArrayRecord, but is Parquet. Set `format` to that of the file"),
    "a pointer": (lambda _: b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "run `git lfs pull`"),
}


@pytest.mark.parametrize(("damage", "words"), FILES.values(), ids=FILES)
def test_a_file_that_is_not_complete_fails(tmp_path: Path, damage: Any, words: str) -> None:
    path = write(tmp_path / "a.array_record", b"one", b"two")
    path.write_bytes(damage(path.read_bytes()))

    error = fail(lambda: list(read_documents(find(tmp_path, format="arrayRecord", onBadRecord="skip").files[0])))

    assert words in str(error)
    assert (error.path, error.fatal) == ("spec.data.train[0].path", True)


def test_array_records_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "text/a.array_record", b"one")
    grow(tmp_path / "text", **{"a.txt": path.read_bytes()})

    assert "It is ArrayRecord: set `format: arrayRecord`" in str(fail(lambda: index_of(tmp_path)))


@given(st.binary(max_size=200))
def test_any_bytes_are_an_example_or_none(content: bytes) -> None:
    assert parse_example(content) is None or content


@given(st.dictionaries(st.text(max_size=9), st.binary(max_size=300), min_size=1, max_size=5))
def test_examples_are_parsed_as_they_were_written(features: dict[str, bytes]) -> None:
    record = field(1, b"".join(feature(name, texts(one)) for name, one in features.items()))

    assert parse_example(record) == {name: ("bytes", [one]) for name, one in features.items()}
