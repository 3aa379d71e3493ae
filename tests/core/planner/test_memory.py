"""The memory estimate: what it is made of, and how it follows the mesh, the batch and the precision."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.job import TrainingJobSpec
from trainingjob_operator.core.planner.memory import USABLE, measure_device
from trainingjob_operator.core.planner.parameters import count_parameters

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)


def test_state_takes_so_many_bytes_a_parameter(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    device = measure_device(spec, ONE)
    parameters = count_parameters(spec.model)

    assert (device.params, device.gradients, device.optimizer) == (4 * parameters, 4 * parameters, 8 * parameters)


def test_stored_bfloat16_halves_the_parameters_alone(make_spec: MakeSpec) -> None:
    full, half = (measure_device(make_spec({"precision.params": kind}), ONE) for kind in ("float32", "bfloat16"))

    assert half.params * 2 == full.params
    assert (half.gradients, half.optimizer) == (full.gradients, full.optimizer)


def test_a_pipeline_holds_stored_bfloat16_in_float32_too(make_spec: MakeSpec) -> None:
    degrees = ONE | {"stage": 2}
    full, half = (measure_device(make_spec({"precision.params": kind}), degrees) for kind in ("float32", "bfloat16"))

    assert [one.fixed - other.fixed for one, other in zip(half.moments, full.moments, strict=True)] == [
        full.params,
        full.params,
    ]


def test_fsdp_splits_the_state_and_data_does_not(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    alone, data, fsdp = (measure_device(spec, ONE | degrees) for degrees in ({}, {"data": 4}, {"fsdp": 4}))

    assert data == alone
    assert alone.params / 4 < fsdp.params < alone.params / 3.9  # norms are not split
    assert fsdp.kept_per_row == alone.kept_per_row


def test_rules_say_how_parameters_are_split(make_spec: MakeSpec) -> None:
    degrees = ONE | {"fsdp": 4}
    built_in, whole = (
        measure_device(make_spec({"parallelism.rules": rules}), degrees) for rules in ({}, {"embed": []})
    )

    assert whole.params == measure_device(make_spec({}), ONE).params
    assert built_in.params < whole.params / 3.9
    assert built_in.kept_per_row == whole.kept_per_row


def test_an_optimizer_over_data_keeps_less_and_all_else_stays(make_spec: MakeSpec) -> None:
    degrees = ONE | {"data": 4, "fsdp": 2}
    whole, spread = (
        measure_device(make_spec({"parallelism.shardOptimizerOverData": over}), degrees) for over in (False, True)
    )

    assert whole.optimizer / 4 <= spread.optimizer < whole.optimizer / 3.9
    assert [one.fixed - other.fixed for one, other in zip(spread.moments, whole.moments, strict=True)] == [
        whole.params,  # gathered anew
        whole.params,
    ]
    assert dataclasses.replace(spread, optimizer=whole.optimizer, moments=whole.moments) == whole


def test_an_optimizer_over_data_keeps_whole_what_does_not_divide(make_spec: MakeSpec) -> None:
    spec = make_spec({"parallelism.shardOptimizerOverData": True})
    odd = measure_device(spec, ONE | {"data": 7})

    assert odd.optimizer == measure_device(spec, ONE).optimizer


def test_tensor_splits_what_a_row_keeps_and_its_logits(make_spec: MakeSpec) -> None:
    spec = make_spec({"model.vocabSize": 258})
    alone, split = (measure_device(spec, ONE | {"tensor": degree}) for degree in (1, 2))

    assert split.moments[0].per_row * 2 == alone.moments[0].per_row
    assert alone.kept_per_row / 2 < split.kept_per_row < alone.kept_per_row  # norms are not split


def test_remat_keeps_only_the_stream_of_each_layer(make_spec: MakeSpec) -> None:
    none, full = (measure_device(make_spec({"memory.remat": remat}), ONE) for remat in ("none", "full"))

    assert full.kept_per_row == 2 * 64 * 64 * 4
    assert full.moments[0] == none.moments[0]
    assert full.moments[1].per_row == none.moments[1].per_row - 4 * 64 * 64 * 4  # the gradients of the scores


def test_without_remat_a_longer_row_keeps_more_than_in_proportion(make_spec: MakeSpec) -> None:
    short, long = (measure_device(make_spec({"training.sequenceLength": n}), ONE).kept_per_row for n in (64, 128))

    scores = 2 * 4 * (4 + 4)  # layers, heads, bytes
    assert long - 2 * short == scores * (128**2 - 2 * 64**2)


def test_the_larger_of_two_moments_counts(make_spec: MakeSpec) -> None:
    vocabulary, layer = (make_spec({"model.vocabSize": vocab}) for vocab in (100_000, 257))
    head, inside = (measure_device(spec, ONE) for spec in (vocabulary, layer))

    for device, moment in ((head, head.moments[0]), (inside, inside.moments[1])):
        assert device.estimate(3, 1).temporaries == device.table + moment.fixed + 3 * moment.per_row


def test_the_table_is_kept_where_more_microsteps_come(make_spec: MakeSpec) -> None:
    device = measure_device(make_spec({}), ONE)

    kept, freed = (device.estimate(3, 1, keeps_table=keeps) for keeps in (True, False))

    assert kept.total - freed.total == device.table


@pytest.mark.parametrize(("fsdp", "share"), [(1, 0), (2, 1), (4, 1), (8, 0.5)])
def test_a_split_head_has_pieces_of_its_gradient_on_the_way(make_spec: MakeSpec, fsdp: int, share: float) -> None:
    spec = make_spec({"slices.accelerator": "tpu-v5e"})
    device = measure_device(spec, ONE | {"fsdp": fsdp})

    assert device.moments[0].fixed == device.head + share * 4 * spec.model.vocab_size * spec.model.embed_dim


@pytest.mark.parametrize("vocab", [257, 100_000])
@pytest.mark.parametrize("rows", [0, 1, 7])
def test_most_rows_are_those_that_just_fit(make_spec: MakeSpec, rows: int, vocab: int) -> None:
    device = measure_device(make_spec({"model.vocabSize": vocab}), ONE)
    enough = -int(-device.estimate(rows, 1).total // USABLE)

    assert device.most_rows(enough + 1, 1) == rows
    assert device.most_rows(enough - 1, 1) == max(rows - 1, 0)


def test_no_row_fits_where_the_parameters_do_not(make_spec: MakeSpec) -> None:
    assert measure_device(make_spec({}), ONE).most_rows(1000, 1) == 0
