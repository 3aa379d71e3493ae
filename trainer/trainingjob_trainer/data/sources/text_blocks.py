"""Text of files in blocks of whole lines, so that a file takes the memory of a block, or of its longest line."""

import codecs
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

from trainingjob_trainer.data.sources.file_chunks import LINE_BREAK
from trainingjob_trainer.data.sources.file_formats import SNIFFED_BYTES, describe_binary_format
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.runtime.errors import TrainingError


def read_lines(file: SourceFile) -> Generator[bytes]:
    """Yield the lines of a file without their line breaks. Text after the last line break is a line too.

    With `onBadRecord: skip`, lines may be no UTF-8.

    Raises:
        TrainingError: the file cannot be read, or is not UTF-8 text.
    """
    with closing(file.read_chunks()) as chunks:
        for block in _check_blocks(file, _cut_after_lines(chunks)):
            lines = block.split(LINE_BREAK)
            yield from lines if lines[-1] else lines[:-1]


def check_utf8(file: SourceFile, text: bytes, *, first: int = 0, head: bytes = b"") -> None:
    """Raise `TrainingError` unless text is UTF-8 without NUL.

    `first` is the place of the text in the file, and `head` the beginning of the file, by default that of the text.
    """
    try:
        text.decode()
    except UnicodeDecodeError as error:
        place = f"byte {first + error.start} is 0x{text[error.start]:02x} ({error.reason})"
        raise _not_text_error(file, head or text, place) from error
    if (place_of_nul := text.find(b"\0")) >= 0:
        raise _not_text_error(file, head or text, f"byte {first + place_of_nul} is NUL")


def _cut_after_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in blocks that end with a line, but for the last one. The first has `SNIFFED_BYTES`."""
    parts = list[bytes]()
    size, is_first = 0, True
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        end = chunk.rfind(LINE_BREAK) + 1
        if end and not (is_first and size < SNIFFED_BYTES):
            whole, rest = b"".join([*parts[:-1], chunk[:end]]), chunk[end:]
            yield whole
            parts, size, is_first = [rest], len(rest), False
    if last := b"".join(parts):
        yield last


def _check_blocks(file: SourceFile, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks of UTF-8 text without a byte order mark."""
    first, head = file.span.start if file.span else 0, b""
    for block in blocks:
        if not first:
            head = block[:SNIFFED_BYTES]
        if not file.skips_bad_records:
            check_utf8(file, block, first=first, head=head)
        elif not first and (what := describe_binary_format(head)):
            raise file.error(f"is not UTF-8 text. It is {what}, or leave it out with `exclude`.")
        yield block if first else block.removeprefix(codecs.BOM_UTF8)
        first += len(block)


def _not_text_error(file: SourceFile, head: bytes, place: str) -> TrainingError:
    what = describe_binary_format(head)
    remedy = f"It is {what}" if what else "Repair the file"
    return file.error(f"is not UTF-8 text: {place}. {remedy}, or leave it out with `exclude`.")
