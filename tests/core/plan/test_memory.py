"""The memory estimate: what it is made of, and how it follows the mesh, the batch and the precision."""

from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.job import TrainingJobSpec
from trainingjob_operator.core.memory import USABLE, measure_device
from trainingjob_operator.core.parameters import count_parameters

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = {"data": 1, "fsdp": 1, "tensor": 1}


def test_state_takes_so_many_bytes_a_parameter(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    device = measure_device(spec, ONE)
    parameters = count_parameters(spec.model)

    assert (device.params, device.gradients, device.optimizer) == (4 * parameters, 8 * parameters, 8 * parameters)


def test_stored_bfloat16_halves_the_parameters_alone(make_spec: MakeSpec) -> None:
    full, half = (measure_device(make_spec({"precision.params": kind}), ONE) for kind in ("float32", "bfloat16"))

    assert half.params * 2 == full.params
    assert (half.gradients, half.optimizer) == (full.gradients, full.optimizer)


def test_fsdp_splits_the_state_and_data_does_not(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    alone, data, fsdp = (measure_device(spec, ONE | degrees) for degrees in ({}, {"data": 4}, {"fsdp": 4}))

    assert data == alone
    assert alone.params / 4 < fsdp.params < alone.params / 3.9  # norms are not split
    assert fsdp.activations_per_row == alone.activations_per_row


def test_tensor_splits_what_a_row_keeps(make_spec: MakeSpec) -> None:
    spec = make_spec({"model.vocabSize": 258})
    alone, split = (measure_device(spec, ONE | {"tensor": degree}) for degree in (1, 2))

    assert split.temporaries_per_row * 2 == alone.temporaries_per_row
    assert split.activations_per_row < alone.activations_per_row


def test_remat_keeps_only_the_stream_of_each_layer(make_spec: MakeSpec) -> None:
    few, many = (measure_device(make_spec({"memory.remat": "full", "model.numLayers": n}), ONE) for n in (2, 12))

    stream = 64 * 64 * 4
    assert many.activations_per_row - few.activations_per_row == 10 * stream


def test_without_remat_every_layer_keeps_as_much_as_one_needs(make_spec: MakeSpec) -> None:
    one, two, nine = (measure_device(make_spec({"model.numLayers": n}), ONE).activations_per_row for n in (1, 2, 9))

    assert nine - two == 7 * (two - one)
    assert one == 2 * (two - one)


def test_the_estimate_grows_by_the_same_with_each_row(make_spec: MakeSpec) -> None:
    device = measure_device(make_spec({}), ONE)
    totals = [device.estimate(rows).total for rows in range(3)]

    assert totals[2] - totals[1] == totals[1] - totals[0] == device.activations_per_row + device.temporaries_per_row


@pytest.mark.parametrize("rows", [0, 1, 7])
def test_most_rows_are_those_that_just_fit(make_spec: MakeSpec, rows: int) -> None:
    device = measure_device(make_spec({}), ONE)
    enough = -int(-device.estimate(rows).total // USABLE)

    assert device.most_rows(enough + 1) == rows
    assert device.most_rows(int(enough * 0.99)) == max(rows - 1, 0)


def test_no_row_fits_where_the_parameters_do_not(make_spec: MakeSpec) -> None:
    assert measure_device(make_spec({}), ONE).most_rows(1000) == 0
