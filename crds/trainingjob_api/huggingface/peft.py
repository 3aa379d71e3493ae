"""LoRA adapters in the format of PEFT: the names and shapes of their tensors, and `adapter_config.json`.

A file has `lora_A.weight` [rank, in] and `lora_B.weight` [out, rank] for each module with an adapter. The layouts
follow from those of the modules' own weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.layout import Axis, Factor
from trainingjob_api.huggingface.rule import Binding, Rule, bind_rules
from trainingjob_api.network.adapter import INPUT_ENDING, OUTPUT_ENDING
from trainingjob_api.network.network import Network
from trainingjob_api.network.tensor import Tensor
from trainingjob_api.spec.lora import Lora

CONFIG_FILE, WEIGHTS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX, WEIGHT = "base_model.model.", ".weight"
SIDES = {"A": ".lora_A.weight", "B": ".lora_B.weight"}
RANK_AXIS = "lora"
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "modules_to_save": (None, []),
    "rank_pattern": (None, {}),
    "alpha_pattern": (None, {}),
    "use_dora": (None, False),
    "use_rslora": (None, False),
    "lora_bias": (None, False),
    "alora_invocation_tokens": (None, []),
    "layer_replication": (None, []),
    "use_qalora": (None, False),
    "use_bdlora": (None, False),
    "kasa_config": (None,),
    "monteclora_config": (None,),
    "arrow_config": (None,),
    # With other initial values, such as `pissa`, the adapters fit a changed matrix, which no file of theirs holds.
    "init_lora_weights": (None, True, False, "gaussian", "orthogonal", "eva"),
}
"""Options of PEFT that `spec.lora` does not have, with the values that do not use them."""


@dataclass(frozen=True)
class AdapterBinding:
    """The adapters of a network in the files of a family."""

    binding: Binding
    modules: tuple[str, ...]
    """Names of the modules that PEFT replaces, in the shortest form that matches no other module."""
    unmapped: tuple[str, ...]
    """Our matrices whose adapter no file of the family can hold: they share a matrix there with others."""


def bind_adapters(family: Family, network: Network) -> AdapterBinding:
    """Return the adapters of a network with LoRA as tensors of files."""
    rules = [adapter_rule for rule in family.rules for adapter_rule in _adapter_rules(rule, network)]
    bound = bind_rules(rules, network, {})
    binding = Binding(
        bound.pieces, tuple(name for name in bound.unmapped if name.endswith((INPUT_ENDING, OUTPUT_ENDING)))
    )
    unmapped = (name.removesuffix(INPUT_ENDING) for name in binding.unmapped if name.endswith(INPUT_ENDING))
    modules = _shorten(
        {
            name.removeprefix(PREFIX).removesuffix(SIDES["A"])
            for name in binding.by_file_name
            if name.endswith(SIDES["A"])
        },
        {name.removesuffix(WEIGHT) for name in family.bind(network).by_file_name},
    )
    return AdapterBinding(binding, modules, tuple(unmapped))


def write_adapter_config(lora: Lora, modules: Sequence[str], base: str | None, revision: str | None) -> dict[str, Any]:
    """Return the `adapter_config.json` of adapters. `base`: the folder or the repository of the model."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": lora.dropout,
        "target_modules": list(modules),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "init_lora_weights": True,
        "modules_to_save": None,
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        "use_rslora": False,
    }


def list_config_problems(lora: Lora, config: Mapping[str, Any]) -> Iterator[str]:
    """Yield in which fields an `adapter_config.json` differs from a job's adapters."""
    if config.get("peft_type") != "LORA":
        yield f"peft_type is {config.get('peft_type')}, not LORA"
    for key, expected, field in (("r", lora.rank, "rank"), ("lora_alpha", lora.alpha, "alpha")):
        if config.get(key) != expected:
            yield f"{key} is {config.get(key)}, but `spec.lora.{field}` is {expected:g}"
    for key, neutral in NEUTRAL.items():
        if config.get(key, neutral[0]) not in neutral:
            yield f"{key} is {config[key]}, which `spec.lora` does not have"


def _adapter_rules(rule: Rule, network: Network) -> Iterator[Rule]:
    """Yield the rules of both sides of the adapters of a matrix, unless the file's matrix holds others too."""
    targets: dict[str, Tensor] = {
        tensor.name: tensor
        for block in network.blocks
        if block.adaptation
        for tensor in block.tensors
        if tensor.name in block.adaptation.targets
    }
    matrix, (file_dims, dims) = targets.get(rule.tensor_name), rule.dims
    if matrix is None or rule.fields or len(dims) != len(matrix.shape) or len(file_dims) != 2:
        return
    if not all(isinstance(factor, Axis) for factors in (*file_dims, *dims) for factor in factors):
        return
    inputs = [_names(dims[dim]) for dim in matrix.input_dims]
    outputs = [_names(factors) for dim, factors in enumerate(dims) if dim not in matrix.input_dims]
    input_axes, output_axes = " ".join(inputs), " ".join(outputs)
    sides = {frozenset(_names(factors).split()): f"({_names(factors)})" for factors in file_dims}
    file_in, file_out = sides.get(frozenset(input_axes.split())), sides.get(frozenset(output_axes.split()))
    if file_in is None or file_out is None:
        return
    module = PREFIX + rule.file_name.removesuffix(WEIGHT)
    yield Rule(
        module + SIDES["A"], f"{rule.tensor_name}{INPUT_ENDING}", f"{RANK_AXIS} {file_in} -> {input_axes} {RANK_AXIS}"
    )
    yield Rule(
        module + SIDES["B"],
        f"{rule.tensor_name}{OUTPUT_ENDING}",
        f"{file_out} {RANK_AXIS} -> {RANK_AXIS} {output_axes}",
    )


def _names(factors: Sequence[Factor]) -> str:
    return " ".join(factor.name for factor in factors if isinstance(factor, Axis))


def _shorten(targets: set[str], modules: set[str]) -> tuple[str, ...]:
    """Return the last parts of the targets' names where these match no other module, else whole names."""
    found: set[str] = set()
    for target in targets:
        last = target.rpartition(".")[2]
        same = {module for module in modules if module.rpartition(".")[2] == last}
        found.add(last if same <= targets else target)
    return tuple(sorted(found))
