"""The committed checkpoints of Hugging Face models, with the results that `transformers` computes from them."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from tests.support.trainer.tiny import make_layout
from trainingjob_api.huggingface.registry import find_family, read_config
from trainingjob_api.huggingface.rule import Binding
from trainingjob_api.network.resolve import resolve
from trainingjob_api.sharding import RULES
from trainingjob_api.spec.memory import Memory
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.spec.precision import Precision
from trainingjob_trainer.huggingface.block_copy import run_copy, to_slices
from trainingjob_trainer.huggingface.import_weights import import_params
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.models.decoder import Params, SplitModel, split_model
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.parallel.sharding import param_shardings
from trainingjob_trainer.store.opening import open_store

FOLDER = Path(__file__).parents[2] / "fixtures/huggingface"
ALL_AXES = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=2, tensor=2, expert=2))
"""Eight devices, on which each dim of a tensor is sharded by another axis."""


class Fixture:
    """One checkpoint of `tests/fixtures/huggingface`."""

    def __init__(self, name: str) -> None:
        self.folder = FOLDER / name
        self.config: dict[str, Any] = json.loads((self.folder / "config.json").read_text())
        self.model = Model.model_validate(read_config(self.config))
        with np.load(self.folder / "expected.npz") as arrays:
            self.expected = dict(arrays)
        self.weights = open_weights(open_store(self.folder))

    @property
    def binding(self) -> Binding:
        return find_family(self.config).bind(resolve(self.model))

    @property
    def gradients(self) -> dict[str, np.ndarray]:
        """Return the expected gradients by the names of the file's tensors."""
        prefix = "gradient/"
        return {name.removeprefix(prefix): value for name, value in self.expected.items() if name.startswith(prefix)}

    def split(self) -> SplitModel:
        return split_model(resolve(self.model), Precision(compute="float32"), Memory(remat="none"), accelerator="cpu")

    def shapes(self, mesh: Mesh) -> Params:
        model = self.split()
        shardings = param_shardings(model.axes, model.shapes, mesh, RULES)
        return jax.tree.map(
            lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
            model.shapes,
            shardings,
        )

    def load(self) -> Params:
        """Return the parameters, read into the shards of eight devices."""
        return import_params(self.weights, self.binding, self.shapes(all_axes_mesh()))


def all_axes_mesh() -> Mesh:
    return build_mesh(jax.devices(), ALL_AXES)


def to_host(params: Params) -> Params:
    return jax.tree.map(np.asarray, params)


def to_files(params: Mapping[str, np.ndarray], binding: Binding) -> dict[str, np.ndarray]:
    """Return whole parameters in the layout of files."""
    tensors: dict[str, np.ndarray] = {}
    for name, pieces in binding.by_file_name.items():
        tensors[name] = np.full(pieces[0].file_shape, np.nan, params[pieces[0].tensor.name].dtype)
        for piece in pieces:
            copy = piece.plan_export()
            source = params[piece.tensor.name][to_slices(copy.region)]
            run_copy(copy, source, tensors[name])
    return tensors
