"""Regions of the arrays in a saved step, read without the rest of the array and without a device.

A tensor has its averaged values, if the step has a moving average of it.
"""

from contextlib import suppress
from typing import Any

import numpy as np
import tensorstore

from trainingjob_api.huggingface.layout import Region, Shape
from trainingjob_trainer.store.array_paths import kvstore_spec


class SavedParams:
    """The parameters of a step, by their names in the network.

    `location` is the path or URI of its folder, and `frozen` that of its frozen tensors; empty: it has all parameters.
    """

    def __init__(self, location: str, frozen: str = "") -> None:
        self._bases = [kvstore_spec(f"{folder.rstrip('/')}/") for folder in (location, frozen) if folder]
        self._arrays: dict[str, Any] = {}

    def shape(self, name: str) -> Shape | None:  # None: the step lacks the parameter
        """Return the shape of a parameter."""
        try:
            return tuple(self._open(name).shape)
        except ValueError:  # TensorStore has no other type for a missing array
            return None

    def read(self, name: str, region: Region) -> np.ndarray:
        """Return a region of a parameter.

        Raises:
            ValueError: the files are damaged or missing.
        """
        numbers: np.ndarray = self._open(name)[tuple(slice(*span) for span in region)].read().result()
        return numbers

    def _open(self, name: str) -> Any:
        if name not in self._arrays:
            step = self._bases[0]
            places = [(step, f"average.{name}"), *((base, f"params.{name}") for base in self._bases)]
            for base, path in places[:-1]:
                with suppress(ValueError):  # TensorStore has no other type for a missing array
                    self._arrays[name] = self._open_array(base, path)
                    return self._arrays[name]
            self._arrays[name] = self._open_array(*places[-1])
        return self._arrays[name]

    def _open_array(self, base: dict[str, Any], path: str) -> Any:
        store = {"driver": "ocdbt", "base": base, "path": f"{path}/"}
        return tensorstore.open({"driver": "zarr", "kvstore": store}, open=True, read=True).result()
