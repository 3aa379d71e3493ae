"""Files of a volume that fails: a job tries again, unless a retry would fail in the same way."""

import errno
import io
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.support.trainer.texts import fail, find, grow, make_tokenizer
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.preparation.listed_files import list_file
from trainingjob_trainer.data.sources import source_files
from trainingjob_trainer.data.sources.readers import read_documents
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface import tokenizer_files
from trainingjob_trainer.huggingface.tokenizer_files import read_chat_template

ERRORS = {
    "a bad sector": (errno.EIO, "cannot be read: Input/output error. Check the volume that holds it.", False),
    "a lost mount": (errno.ENOTCONN, "cannot be read: Transport endpoint is not connected. Check the volume", False),
    "a replaced file": (errno.ESTALE, "changed while it was read.", False),
    "no permission": (errno.EACCES, "cannot be read: Permission denied. Check its permissions.", True),
    "a deleted file": (errno.ENOENT, "cannot be read: No such file or directory. Check the volume", True),
}
EACH = pytest.mark.parametrize(("number", "words", "fatal"), ERRORS.values(), ids=ERRORS)


class FailingFile(io.RawIOBase):
    """A file whose volume fails after some bytes."""

    def __init__(self, content: bytes, number: int) -> None:
        self._content = io.BytesIO(content)
        self._number = number
        self._reads = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._content.seek(offset, whence)

    def tell(self) -> int:
        return self._content.tell()

    def readinto(self, buffer: Any) -> int:
        self._reads += 1
        if self._reads > 2:
            raise OSError(self._number, os.strerror(self._number))
        return self._content.readinto(buffer)


def write_parquet() -> bytes:
    content = io.BytesIO()
    parquet.write_table(pa.table({"text": ["one", "two"]}), content)
    return content.getvalue()


FILES: dict[str, bytes] = {"text": b"text" * 5000, "jsonl": b'{"text": "one"}\n' * 2000, "parquet": write_parquet()}


@EACH
@pytest.mark.parametrize("name", FILES)
def test_a_read_that_fails_is_tried_again_if_the_volume_may_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any, number: int, words: str, fatal: bool
) -> None:
    grow(tmp_path, **{f"a.{name}": FILES[name]})
    (file,) = find(tmp_path, format=name, pattern="*").files
    monkeypatch.setattr(source_files, "open_linked", lambda _: FailingFile(FILES[name], number))

    error = fail(lambda: list(read_documents(file)))

    assert f"a.{name} {words}" in str(error)
    assert (error.path, error.fatal) == ("spec.data.train[0].path", fatal)


def refuse(number: int) -> Callable[..., Any]:
    def raise_error(path: Any, *_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), os.fspath(path))

    return raise_error


@EACH
def test_a_file_that_cannot_be_listed_is_tried_again_if_the_volume_may_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, fatal: bool
) -> None:
    (file,) = find(grow(tmp_path, **{"a.txt": "a"})).files
    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refuse(number))
        error = fail(lambda: list_file(file))

    assert (f"a.txt {words}" in str(error), error.fatal) == (True, fatal)


@pytest.mark.parametrize(("number", "fatal"), [(errno.EIO, False), (errno.EACCES, True)])
def test_a_search_that_fails_is_repeated_if_the_volume_may_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fatal: bool
) -> None:
    grow(tmp_path, **{"a.txt": "a"})
    monkeypatch.setattr(os, "scandir", refuse(number))

    assert fail(lambda: find(tmp_path)).fatal == fatal


@pytest.mark.parametrize(("number", "fatal"), [(errno.EIO, False), (errno.ENOENT, True)])
def test_tokenizer_files_are_read_again_if_the_volume_may_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, fatal: bool
) -> None:
    make_tokenizer(tmp_path / "tokenizer.json", "<unk>", "one")
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    tokenizers = [
        Tokenizer(type="tokenizers", path=str(tmp_path / "tokenizer.json")),
        Tokenizer(type="huggingFace", path=str(tmp_path)),
    ]
    template = Tokenizer.model_validate(
        {"type": "huggingFace", "path": str(tmp_path), "chatTemplate": {"path": str(tmp_path / "chat.jinja")}}
    )
    with monkeypatch.context() as patched:
        patched.setattr(tokenizer_files, "open_linked", refuse(number))
        errors = [fail(partial(DocumentEncoder, tokenizer, 300)) for tokenizer in tokenizers]
        errors.append(fail(lambda: read_chat_template(template)))

    assert [error.fatal for error in errors] == [fatal] * 3


LINKS: dict[str, tuple[str, str]] = {
    "variables": ("/proc/self/environ", f"/proc/{os.getpid()}/environ"),
    "a file of the kernel": ("/proc/version", "/proc/version"),
}


@pytest.mark.parametrize(("target", "real"), LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("name", ["jsonl", "array_record"])
def test_links_to_files_of_the_pod_are_not_read(tmp_path: Path, name: str, target: str, real: str) -> None:
    """Otherwise a writer of the volume would get the tokens and variables of a job, in its dataset."""
    grow(tmp_path, **{f"a.{name}": f"-> {target}"})
    (file,) = find(tmp_path, format="arrayRecord" if name == "array_record" else "jsonl", pattern="*").files

    error = fail(lambda: list(read_documents(file)))

    assert f"a.{name} is a link to {real}, which belongs to the pod. Leave it out with `exclude`." in str(error)


def test_a_link_that_changes_after_the_search_is_not_followed(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.jsonl": '{"text": "a"}'})
    (file,) = find(tmp_path, format="jsonl", pattern="*").files
    (tmp_path / "a.jsonl").unlink()
    (tmp_path / "a.jsonl").symlink_to("/proc/self/environ")

    assert "which belongs to the pod" in str(fail(lambda: list(read_documents(file))))


def test_a_pipe_that_replaces_a_file_is_not_waited_for(tmp_path: Path) -> None:
    grow(tmp_path, **{"a.jsonl": '{"text": "a"}'})
    (file,) = find(tmp_path, format="jsonl", pattern="*").files
    (tmp_path / "a.jsonl").unlink()
    os.mkfifo(tmp_path / "a.jsonl")

    assert "a.jsonl is not a regular file. Leave it out" in str(fail(lambda: list(read_documents(file))))


def test_links_to_another_volume_and_to_the_image_and_a_path_of_the_pod_are_read(tmp_path: Path) -> None:
    """Debian links a file of Python's library to `/etc`."""
    grow(tmp_path, **{"a.txt": "-> ../far/a.txt", "../far/a.txt": "far", "b.txt": "-> /etc/passwd"})
    linked, of_image = find(tmp_path).files
    (named,) = find(Path("/proc/version")).files

    assert list(read_documents(linked)) == [b"far"]
    assert list(read_documents(of_image)) == [Path("/etc/passwd").read_bytes()]
    assert list(read_documents(named)) == [Path("/proc/version").read_bytes()]
