"""A model family: the table of its tensors, and the table of its `config.json`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from trainingjob_api.differences import list_differences
from trainingjob_api.huggingface.config_fields import (
    Config,
    ConfigError,
    ConfigField,
    Section,
    read_fields,
    write_fields,
)
from trainingjob_api.huggingface.layer_fields import LayerTypes
from trainingjob_api.huggingface.layout import Sizes
from trainingjob_api.huggingface.rule import Binding, Rule, bind_rules, has_rules
from trainingjob_api.network.network import Network
from trainingjob_api.network.resolve import resolve
from trainingjob_api.network.routed_mlp import Balance, Experts
from trainingjob_api.spec.model import Dropout, Init, Model

TRAINING_OPTIONS = ("dispatch", "capacity_factor", "group_length")
"""Options of experts that change how a model is trained, and not what it computes if no token is dropped."""


type Values = tuple[Any, Any]
"""The values of a field in two models. None: it is not set."""


def _no_sizes(network: Network) -> Sizes:
    return {}


@dataclass(frozen=True)
class Family:
    """Models of one architecture."""

    model_type: str
    """`model_type` of their `config.json`."""
    architecture: str
    """Class in `transformers`."""
    rules: tuple[Rule, ...]
    fields: tuple[ConfigField, ...]
    optional_prefix: str = ""
    """Beginning of all names in the rules that files may lack."""
    derived: tuple[str, ...] = ()
    """Endings of tensors in files that follow from the configuration, such as tables of frequencies."""
    sizes: Callable[[Network], Sizes] = _no_sizes
    """Returns the sizes of axes in files that are no dim of our tensors."""
    finish: Callable[[Section], None] = field(default=lambda section: None)
    """Completes a model section that was read."""

    @property
    def has_local_rope(self) -> bool:
        """Return whether layers with a window may have other rotary positions."""
        return any(isinstance(item, LayerTypes) and item.has_local_rope for item in self.fields)

    def bind(self, network: Network) -> Binding:
        """Return the rules of the tensors of a network."""
        return bind_rules(self.rules, network, self.sizes(network))

    def to_section(self, config: Config) -> Section:
        """Return the model section of a `config.json`.

        Raises:
            ConfigError: no model section expresses it.
        """
        section = read_fields(self.fields, config)
        self.finish(section)
        return section

    def to_config(self, model: Model) -> dict[str, Any] | None:  # None: the family cannot express the model
        """Return the `config.json` of a model, without token ids."""
        config = write_fields(self.fields, _dump(model))
        read_back = self._read_back(config)
        if read_back is None or not self._is_equal(model, read_back):
            return None
        return {"architectures": [self.architecture], "model_type": self.model_type} | config

    def find_differences(self, model: Model) -> Mapping[str, Values] | None:  # None: they are unknown
        """Return the fields in which a model differs from the nearest of the family."""
        read_back = self._read_back(write_fields(self.fields, _dump(model)))
        return None if read_back is None else compare_functions(model, read_back)

    def _read_back(self, config: Config) -> Model | None:  # None: it is no model section
        try:
            return Model.model_validate(self.to_section(config))
        except (ConfigError, ValidationError):  # a value of the model has no name there, or is illegal by itself
            return None

    def _is_equal(self, model: Model, read_back: Model) -> bool:
        """Return whether the files of the family hold all that the network of a model computes with."""
        network, other_network = (resolve(_without_training_options(item)) for item in (model, read_back))
        return network == other_network and has_rules(self.rules, resolve(model))


def compare_functions(model: Model, other: Model) -> dict[str, Values]:
    """Return the fields in which two models compute differently, as paths in the section, with the value of each."""
    section, other_section = (_dump(_without_training_options(item)) for item in (model, other))
    return {".".join(path): (before, after) for path, before, after in list_differences(section, other_section)}


def _dump(model: Model) -> Section:
    """Return the model section with all defaults, and with heads that follow from other dims."""
    section = model.model_dump(mode="json", by_alias=True)
    return section | {"numKvHeads": model.kv_heads, "headDim": model.heads.head_dim}


def _without_training_options(model: Model) -> Model:
    """Return a model with the same values of all that matters for training alone."""
    experts = model.experts
    if experts:
        has_bias = experts.balance.bias_rate is not None  # the files hold the bias, and not its rate
        balance = Balance(bias_rate=1.0 if has_bias else None)
        same = {name: Experts.model_fields[name].default for name in TRAINING_OPTIONS}
        experts = experts.model_copy(update=same | {"balance": balance})
    same = {"preset": None, "init": Init(), "dropout": Dropout(), "multi_token_prediction": None}
    return model.model_copy(update={**same, "experts": experts})
