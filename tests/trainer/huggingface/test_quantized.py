"""Quantized tensors: regions are those of the numbers that the files stand for."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.object_store import ObjectStore
from tests.trainer.huggingface.test_safetensors import encode
from trainingjob_api.huggingface.layout import Region
from trainingjob_trainer.huggingface.block_copy import to_slices
from trainingjob_trainer.huggingface.import_weights import match_tensors
from trainingjob_trainer.huggingface.quantized import BlockScaledTensor, Mxfp4Tensor
from trainingjob_trainer.huggingface.weights_folder import WeightsFolder, open_weights

EXPERTS, OUTPUTS, GROUPS = 2, 3, 2
FP4 = (0, 0.5, 1, 1.5, 2, 3, 4, 6)


def folder(**tensors: np.ndarray) -> WeightsFolder:
    store = ObjectStore()
    store.objects["model.safetensors"] = encode({name.replace("__", "."): array for name, array in tensors.items()})
    return open_weights(store)


def packed() -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Return random tensors in MXFP4, and their numbers, computed one by one."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (EXPERTS, OUTPUTS, GROUPS, 16), dtype=np.uint8)
    scales = random.integers(120, 134, (EXPERTS, OUTPUTS, GROUPS), dtype=np.uint8)
    numbers = np.zeros((EXPERTS, GROUPS * 32, OUTPUTS), np.float32)
    for expert, output, group, byte in np.ndindex(blocks.shape):
        for half in (0, 1):
            bits = int(blocks[expert, output, group, byte]) >> (4 * half) & 15
            value = FP4[bits & 7] * (-1 if bits & 8 else 1) * 2.0 ** (int(scales[expert, output, group]) - 127)
            numbers[expert, group * 32 + 2 * byte + half, output] = value
    return {"up_blocks": blocks, "up_scales": scales}, numbers


REGIONS: dict[str, Region] = {
    "all": ((0, 2), (0, 64), (0, 3)),
    "one expert": ((1, 2), (0, 64), (0, 3)),
    "inputs across groups": ((0, 2), (30, 35), (0, 3)),
    "inputs of the second group": ((0, 1), (40, 41), (1, 3)),
}


@pytest.mark.parametrize("region", REGIONS.values(), ids=REGIONS)
def test_a_region_in_mxfp4_is_that_of_the_numbers(region: Region) -> None:
    tensors, numbers = packed()
    weights = folder(**tensors)

    assert weights.tensors.keys() == {"up"}
    assert weights.tensors["up"].shape == numbers.shape
    assert np.array_equal(weights.read("up", region), numbers[to_slices(region)])


MATRIX_REGIONS: dict[str, Region] = {
    "all": ((0, 200), (0, 300)),
    "across blocks": ((100, 150), (120, 290)),
    "in one block": ((130, 131), (256, 258)),
}


@pytest.mark.parametrize("region", MATRIX_REGIONS.values(), ids=MATRIX_REGIONS)
def test_a_region_in_blocks_of_8_bits_is_that_of_the_numbers(region: Region) -> None:
    random = np.random.default_rng(0)
    matrix = random.normal(size=(200, 300)).astype(ml_dtypes.float8_e4m3fn)
    factors = random.uniform(0.5, 2, (2, 3)).astype(np.float32)
    weights = folder(q__weight=matrix, q__weight_scale_inv=factors)

    whole = np.kron(factors, np.ones((128, 128), np.float32))[:200, :300] * matrix.astype(np.float32)
    assert weights.tensors.keys() == {"q.weight"}
    assert np.array_equal(weights.read("q.weight", region), whole[to_slices(region)])
    assert weights.tensors["q.weight"].num_bytes == 200 * 300 + 2 * 3 * 4


def test_parts_that_do_not_fit_stay_separate() -> None:
    tensors, _ = packed()
    blocks = {**tensors, "up_scales": tensors["up_scales"][:1]}
    matrix = {"q": np.zeros((4, 4), ml_dtypes.float8_e4m3fn), "q_scale_inv": np.ones((2, 2), np.float32)}

    assert folder(**blocks).tensors.keys() == {"up_blocks", "up_scales"}
    assert folder(up_blocks=tensors["up_blocks"]).tensors.keys() == {"up_blocks"}
    assert folder(**matrix).tensors.keys() == {"q", "q_scale_inv"}


def test_quantized_tensors_fit_where_plain_ones_do() -> None:
    fixture = Fixture("gpt_oss")
    tensors = dict(fixture.weights.tensors)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    plain = fixture.weights.tensors[name]
    entry = folder(x=np.zeros(1, np.uint8)).tensors["x"]
    assert not isinstance(entry, Mxfp4Tensor | BlockScaledTensor)
    experts, _, outputs = plain.shape
    tensors[name] = Mxfp4Tensor(
        replace(entry, shape=(experts, outputs, 1, 16)), replace(entry, shape=(experts, outputs, 1))
    )

    match = match_tensors(replace(fixture.weights, tensors=tensors), fixture.binding)

    assert match.misfits == (f"{name} is 4x32x24, not 4x16x24",)
    assert (match.missing, match.unused) == ((), ())
