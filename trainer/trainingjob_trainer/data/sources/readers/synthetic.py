"""Random numbers instead of text, to measure throughput. The encoder maps them to ids of the vocabulary."""

import zlib
from collections.abc import Iterator

import numpy as np

from trainingjob_api.spec.data import Synthetic
from trainingjob_trainer.data.sources.source_files import SourceFile
from trainingjob_trainer.data.token_arrays import ID_DTYPE

DOCUMENT_TOKENS = 1024
BATCH_TOKENS = 1024 * DOCUMENT_TOKENS


def read_documents(file: SourceFile) -> Iterator[bytes]:
    """Yield documents of random little-endian uint32, the last one perhaps shorter.

    They depend on seed and name alone: the raw output of a bit generator is the same in each version of NumPy.
    """
    for numbers in _draw(file.source.name, file.source.synthetic or Synthetic()):
        for start in range(0, len(numbers), DOCUMENT_TOKENS):
            yield numbers[start : start + DOCUMENT_TOKENS].tobytes()


def _draw(name: str, options: Synthetic) -> Iterator[np.ndarray]:
    """Yield random numbers, uint32 [BATCH_TOKENS] at a time."""
    generator = np.random.Philox(key=np.array([options.seed, zlib.crc32(name.encode())], np.uint64))
    for first in range(0, options.tokens, BATCH_TOKENS):
        numbers = generator.random_raw(BATCH_TOKENS) >> np.uint64(32)
        yield numbers.astype(ID_DTYPE)[: options.tokens - first]
