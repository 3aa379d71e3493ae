"""Degrees: the value that replaces -1, and the problem if they do not multiply to the devices."""

import pytest

from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_operator.core.planner.mesh import (
    check_degree_form,
    check_degree_product,
    combine_degrees,
    divisors,
    nearest_divisors,
    nearest_multiples,
    resolve_degrees,
)

RESOLVED: dict[str, tuple[dict[str, int], int, dict[str, int] | None]] = {
    "one axis takes everything": ({"fsdp": -1}, 8, {"fsdp": 8}),
    "one axis takes what the others leave": (
        {"data": 2, "fsdp": -1, "tensor": 2},
        16,
        {"data": 2, "fsdp": 4, "tensor": 2},
    ),
    "nothing is left": ({"fsdp": -1, "tensor": 4}, 4, {"tensor": 4}),
    "all written out": ({"data": 2, "tensor": 2}, 4, {"data": 2, "tensor": 2}),
    "not a divisor": ({"fsdp": -1, "tensor": 3}, 4, None),
    "another product": ({"data": 2}, 4, None),
    "two of -1": ({"data": -1, "fsdp": -1}, 4, None),
    "zero": ({"data": 0, "fsdp": -1}, 4, None),
}


@pytest.mark.parametrize(("degrees", "total", "want"), RESOLVED.values(), ids=RESOLVED.keys())
def test_resolve(degrees: dict[str, int], total: int, want: dict[str, int] | None) -> None:
    resolved = resolve_degrees(AxisDegrees(**degrees), total)

    assert resolved == (want and AxisDegrees(**want))


PRODUCTS: dict[str, tuple[dict[str, int], int, list[str]]] = {
    "it fits": ({"data": 2, "fsdp": -1}, 8, []),
    "ill-formed degrees are told as such": ({"data": -1, "fsdp": -1}, 8, []),
    "a product that is too small": (
        {"data": 2, "tensor": 2},
        8,
        [
            (
                "p: the degrees multiply to 4 (data=2 x tensor=2), but must fill 8. "
                "Nearest legal values: data: 4, fsdp: 2, tensor: 4."
            )
        ],
    ),
    "nothing is split": (
        {},
        8,
        [
            (
                "p: the degrees multiply to 1 (no axis is sharded), but must fill 8. "
                "Nearest legal values: data: 8, fsdp: 8, tensor: 8."
            )
        ],
    ),
    "no single change helps": (
        {"data": 3, "tensor": 5},
        8,
        ["p: the degrees multiply to 15 (data=3 x tensor=5), but must fill 8."],
    ),
    "-1 beside what does not divide": (
        {"fsdp": -1, "tensor": 6},
        64,
        [
            (
                "p: the degrees other than fsdp=-1 multiply to 6 (tensor=6), which must divide 64. "
                "Nearest legal values: tensor: 4, tensor: 8."
            )
        ],
    ),
    "-1 beside more than there is": (
        {"fsdp": -1, "tensor": 128},
        64,
        [
            (
                "p: the degrees other than fsdp=-1 multiply to 128 (tensor=128), which must divide 64. "
                "Nearest legal value: tensor: 64."
            )
        ],
    ),
}


@pytest.mark.parametrize(("degrees", "total", "want"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_check_product(degrees: dict[str, int], total: int, want: list[str]) -> None:
    problems = check_degree_product("p", AxisDegrees(**degrees), total, str(total))

    assert [str(problem) for problem in problems] == want


def test_check_form_names_each_zero_and_all_of_several_rests() -> None:
    problems = check_degree_form("p", AxisDegrees(data=0, fsdp=-1, tensor=-1))

    assert [problem.path for problem in problems] == ["p.data", "p"]
    assert "but `fsdp` and `tensor` are" in problems[1].message


def test_combine_multiplies_both_networks() -> None:
    mesh = combine_degrees(AxisDegrees(fsdp=4, tensor=2), AxisDegrees(data=3, fsdp=2))

    assert mesh == {"data": 3, "stage": 1, "fsdp": 8, "expert": 1, "context": 1, "tensor": 2}


@pytest.mark.parametrize(
    ("number", "want"), [(1, (1,)), (12, (1, 2, 3, 4, 6, 12)), (16, (1, 2, 4, 8, 16)), (7, (1, 7))]
)
def test_divisors(number: int, want: tuple[int, ...]) -> None:
    assert divisors(number) == want


@pytest.mark.parametrize(("number", "wanted", "want"), [(8, 6, (4, 8)), (8, 9, (8,)), (8, 0, (1,)), (8, 4, (2, 8))])
def test_nearest_divisors(number: int, wanted: int, want: tuple[int, ...]) -> None:
    assert nearest_divisors(number, wanted) == want


@pytest.mark.parametrize(("factor", "wanted", "want"), [(4, 5, (4, 8)), (4, 3, (4,)), (4, 8, (8, 12))])
def test_nearest_multiples(factor: int, wanted: int, want: tuple[int, ...]) -> None:
    assert nearest_multiples(factor, wanted) == want
