"""How long work may take in a test before it counts as endless: far longer than it should, on any machine."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

ENDLESS_SECONDS = 20.0


@contextmanager
def at_once() -> Iterator[None]:
    """Fail where the processor was busy as long as only an endless loop is. Goals of speed are for benchmarks."""
    begun = time.process_time()
    yield
    assert time.process_time() - begun < ENDLESS_SECONDS
