"""UTF-8 text: each file is one document."""

import codecs
from collections.abc import Iterator

from trainingjob_trainer.data.sources.file_formats import describe_binary_format
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.runtime.errors import TrainingError


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the file's text.

    Raises:
        TrainingError: the file cannot be read, or is not UTF-8 text.
    """
    yield read_utf8(file)


def read_utf8(file: SourceFile) -> bytes:
    """Return a file's content, which is valid UTF-8 without NUL, without a byte order mark.

    Raises:
        TrainingError: the file cannot be read, or is not UTF-8 text.
    """
    content = file.read()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        place = f"byte {error.start} is 0x{content[error.start]:02x} ({error.reason})"
        raise _not_text_error(file, content, place) from error
    if (first := content.find(b"\0")) >= 0:
        raise _not_text_error(file, content, f"byte {first} is NUL")
    return content.removeprefix(codecs.BOM_UTF8)


def read_near_utf8(file: SourceFile) -> bytes:
    """Return a file's content, parts of which may be no UTF-8, without a byte order mark.

    Raises:
        TrainingError: the file cannot be read, or is in another format.
    """
    content = file.read()
    if what := describe_binary_format(content):
        raise file.error(f"is not UTF-8 text. It is {what}, or leave it out with `exclude`.")
    return content.removeprefix(codecs.BOM_UTF8)


def _not_text_error(file: SourceFile, content: bytes, place: str) -> TrainingError:
    what = describe_binary_format(content)
    remedy = f"It is {what}" if what else "Repair the file"
    return file.error(f"is not UTF-8 text: {place}. {remedy}, or leave it out with `exclude`.")
