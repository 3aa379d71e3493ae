"""Rules about quantized matmuls: the hardware, the excluded matrices, and LoRA."""

from collections.abc import Iterator
from typing import get_args

from trainingjob_api.network.freeze import matches_any
from trainingjob_api.network.quantize import list_quantizable
from trainingjob_api.network.resolve import resolve
from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.precision import Quantization, QuantizedType
from trainingjob_operator.core.planner.hardware import CPU, Hardware
from trainingjob_operator.core.planner.plan import Rates
from trainingjob_operator.core.planner.problem_messages import has_no_effect, join_words, quote_field
from trainingjob_operator.core.validation.matrix_patterns import find_unmatched
from trainingjob_operator.core.validation.rule import HardwareRule, Rule

QUANTIZATION = "spec.precision.quantization"
TYPE = f"{QUANTIZATION}.type"
EXCLUDE = f"{QUANTIZATION}.exclude"
TYPES: tuple[QuantizedType, ...] = get_args(QuantizedType)


def check_type(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """`precision.quantization.type` must be a format in which the accelerator multiplies. On `cpu` it is emulated."""
    row = hardware.accelerators_by_name.get(spec.slices.accelerator)
    quantization = spec.precision.quantization
    if row is None or quantization is None or _multiplies(row.rates, quantization.type):
        return
    supported_types = [quantized_type for quantized_type in TYPES if _multiplies(row.rates, quantized_type)]
    others = [
        accelerator.name
        for accelerator in hardware.accelerators_by_name.values()
        if accelerator.rates.quantized(quantization.type)
    ]
    requirement = f"must be {join_words(supported_types)}" if supported_types else "must not be set"
    elsewhere = f" {join_words(others)} multiply in {quantization.type}." if others else ""
    message = (
        f"{quantization.type} {requirement} on {quote_field('spec.slices.accelerator', row.name)}, which does not "
        f"multiply in {quantization.type}.{elsewhere}"
    )
    yield Problem(TYPE, quantization.type, message, tuple(supported_types))


def _multiplies(rates: Rates, quantized_type: QuantizedType) -> bool:
    """Return whether an accelerator multiplies in a type. One of unknown rates may do so."""
    return not rates.bfloat16 or bool(rates.quantized(quantized_type))


def check_exclude(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Each pattern of `precision.quantization.exclude` must match a matrix that is quantized otherwise."""
    quantization = spec.precision.quantization
    if quantization is None or not quantization.exclude:
        return
    network = resolve(spec.model)
    yield from find_unmatched(EXCLUDE, quantization.exclude, network, list_quantizable(network), "is never quantized")


def check_base(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`lora.baseQuantization` must not be set with `precision.quantization`."""
    if spec.precision.quantization and spec.lora and spec.lora.base_quantization:
        message = (
            f"must not be set with `{QUANTIZATION}`, which rounds the matrices in each matmul. Remove it to train "
            "faster, or remove the other to save memory."
        )
        yield Problem("spec.lora.baseQuantization", spec.lora.base_quantization, message)


def warn_of_slow_type(spec: TrainingJobSpec, hardware: Hardware) -> Iterator[Problem]:
    """A quantized matmul that is not faster costs accuracy and saves no time."""
    quantization, accelerator = spec.precision.quantization, spec.slices.accelerator
    if quantization is None:
        return
    if accelerator == CPU:
        message = f"{quantization.type} is emulated on cpu and slower than float32. Use it only to try out a job."
        yield Problem(TYPE, quantization.type, message)
    row = hardware.accelerators_by_name.get(accelerator)
    if row and 0 < row.rates.quantized(quantization.type) <= row.rates.bfloat16:
        faster = tuple(
            quantized_type for quantized_type in TYPES if row.rates.quantized(quantized_type) > row.rates.bfloat16
        )
        message = f"{quantization.type} matmuls are not faster than bfloat16 ones on {accelerator}."
        yield Problem(TYPE, quantization.type, message, faster)


def warn_of_excluded_matrices(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`precision.quantization` has no effect if `exclude` matches all matrices."""
    quantization = spec.precision.quantization
    if quantization and _excludes_all(spec, quantization):
        message = has_no_effect(f"`{EXCLUDE}` matches all matrices of the layers", quantization.type)
        yield Problem(TYPE, quantization.type, message)


def _excludes_all(spec: TrainingJobSpec, quantization: Quantization) -> bool:
    return all(matches_any(matrix.name, quantization.exclude) for matrix in list_quantizable(resolve(spec.model)))


_READS = ("precision.quantization", "slices.accelerator")
RULES = (
    HardwareRule(_READS, check_type),
    Rule(("precision.quantization", "model"), check_exclude),
    Rule(("precision.quantization", "lora"), check_base),
)
WARNINGS = (
    HardwareRule(_READS, warn_of_slow_type),
    Rule(("precision.quantization", "model"), warn_of_excluded_matrices),
)
