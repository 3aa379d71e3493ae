"""UTF-8 text: each file is one document, which is held in memory as a whole."""

import codecs
from collections.abc import Iterator

from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.sources.text_blocks import check_utf8


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield the file's text, without a byte order mark.

    Raises:
        TrainingError: the file cannot be read, or is not UTF-8 text.
    """
    content = file.read()
    check_utf8(file, content)
    yield content.removeprefix(codecs.BOM_UTF8)
