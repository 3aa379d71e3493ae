"""A cache of many values, of which few are in use at a time. The others are compressed."""

import pickle
from collections import OrderedDict

from trainingjob_operator.shell.text_compression import TextCompressor

NUM_WARM = 32
"""Number of values that are kept uncompressed. The plan of a small job takes 50 KiB."""


class ColdCache[V]:
    """Values by key, without a limit of their number. The caller must not change a value.

    A value that was not used lately takes about a millisecond to read.
    """

    def __init__(self, num_warm: int = NUM_WARM) -> None:
        self._num_warm = num_warm
        self._warm: OrderedDict[str, V] = OrderedDict()
        self._cold: dict[str, bytes] = {}
        self._compressor = TextCompressor()

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._warm) + len(self._cold)

    def __setitem__(self, key: str, value: V) -> None:
        """Store a value."""
        self._cold.pop(key, None)
        self._warm[key] = value
        self._warm.move_to_end(key)
        if len(self._warm) > self._num_warm:
            oldest, cooled = self._warm.popitem(last=False)
            self._cold[oldest] = self._compressor.compress(pickle.dumps(cooled, pickle.HIGHEST_PROTOCOL))

    def __contains__(self, key: str) -> bool:
        """Return whether there is a value."""
        return key in self._warm or key in self._cold

    def __getitem__(self, key: str) -> V:
        """Return a value. Raises `KeyError` if there is none."""
        if key in self._cold:
            text = self._compressor.restore(self._cold[key])
            value: V = pickle.loads(text)  # noqa: S301  # this process wrote it
            self[key] = value
        return self._warm[key]

    def get(self, key: str) -> V | None:
        """Return a value. None: there is none."""
        if key not in self:
            return None
        return self[key]

    def pop(self, key: str) -> None:
        """Remove a value, if there is one."""
        self._warm.pop(key, None)
        self._cold.pop(key, None)
