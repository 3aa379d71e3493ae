"""Frequencies of rotary positions: those that transformers 5.24 computes for heads of 16 features."""

from typing import Any

import pytest

from trainingjob_api.network.rope import Rope

SLOW = [0.0025, 0.0007905695, 0.00025, 7.905695e-05]
LLAMA3 = {"type": "llama3", "factor": 8, "originalLength": 64}
YARN = {"type": "yarn", "factor": 4, "originalLength": 64}
SCALINGS: dict[str, tuple[dict[str, Any] | None, list[float], float]] = {
    "none": (None, [1, 0.3162278, 0.1, 0.03162278, 0.01, 0.003162278, 0.001, 0.0003162278], 1),
    "linear": ({"type": "linear", "factor": 4}, [0.25, 0.07905694, 0.025, 0.007905695, *SLOW], 1),
    "Llama 3": (
        LLAMA3,
        [1, 0.2443846, 0.01304226, 0.003952847, 0.00125, 0.0003952847, 0.000125, 3.952847e-05],
        1,
    ),
    "YaRN": (YARN, [1, 0.2371708, 0.05, 0.007905695, *SLOW], 1.138629436111989),
    "YaRN with other limits": (
        YARN | {"yarn": {"betaFast": 8, "betaSlow": 0.5, "truncate": False, "attentionFactor": 1.5}},
        [1, 0.2384085, 0.0442483, 0.007905695, *SLOW],
        1.5,
    ),
    "YaRN with a step": (
        YARN | {"yarn": {"betaFast": 2, "betaSlow": 2, "truncate": False}},
        [1, 0.3162278, 0.025, 0.007905695, *SLOW],
        1.138629436111989,
    ),
}


@pytest.mark.parametrize(("scaling", "want", "factor"), SCALINGS.values(), ids=SCALINGS)
def test_frequencies_are_those_of_transformers(
    scaling: dict[str, Any] | None, want: list[float], factor: float
) -> None:
    rope = Rope.model_validate({"scaling": scaling})

    assert rope.frequencies(16) == pytest.approx(want, rel=1e-6)
    assert rope.attention_factor == pytest.approx(factor)


def test_the_limits_of_llama_3_are_rotations_over_the_original_length() -> None:
    narrow = Rope.model_validate({"scaling": LLAMA3 | {"llama3": {"lowFrequency": 2, "highFrequency": 2.5}}})
    rotations = [64 * frequency / 6.283185 for frequency in Rope().frequencies(16)]

    shares = [one / plain for one, plain in zip(narrow.frequencies(16), Rope().frequencies(16), strict=True)]

    assert [share == pytest.approx(1) for share in shares] == [turns > 2.5 for turns in rotations]
    assert [share == pytest.approx(1 / 8) for share in shares] == [turns < 2 for turns in rotations]


def test_equal_limits_of_llama_3_are_a_step() -> None:
    plain = Rope().frequencies(16)
    step = Rope.model_validate({"scaling": LLAMA3 | {"llama3": {"lowFrequency": 1, "highFrequency": 1}}})

    assert step.frequencies(16) == pytest.approx([one if 64 * one / 6.283185 > 1 else one / 8 for one in plain])


def test_a_share_of_the_features_has_the_frequencies_of_a_narrower_head() -> None:
    assert Rope(fraction=0.5).frequencies(16) == Rope().frequencies(8)
    assert Rope(fraction=0.5).rotated_dim(16) == 8
