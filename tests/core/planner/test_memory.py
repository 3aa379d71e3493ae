"""The memory estimate: its parts, and their dependence on mesh, batch and precision."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_api.base import AXES
from trainingjob_api.network.resolve import resolve
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.memory import MAX_SEQUENCES, USABLE_MEMORY_SHARE, estimate_device_memory

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

ONE = dict.fromkeys(AXES, 1)


def test_state_takes_so_many_bytes_a_parameter(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    device = estimate_device_memory(spec, ONE)
    parameters = resolve(spec.model).num_parameters

    assert (device.params, device.gradients, device.optimizer) == (4 * parameters, 4 * parameters, 8 * parameters)


def test_stored_bfloat16_halves_the_parameters_alone(make_spec: MakeSpec) -> None:
    full, half = (
        estimate_device_memory(make_spec({"precision.params": kind}), ONE) for kind in ("float32", "bfloat16")
    )

    assert half.params * 2 == full.params
    assert (half.gradients, half.optimizer) == (full.gradients, full.optimizer)


def test_a_pipeline_holds_stored_bfloat16_in_float32_too(make_spec: MakeSpec) -> None:
    degrees = ONE | {"stage": 2}
    full, half = (
        estimate_device_memory(make_spec({"precision.params": kind}), degrees) for kind in ("float32", "bfloat16")
    )

    assert [
        one.fixed_bytes - other.fixed_bytes for one, other in zip(half.peak_points, full.peak_points, strict=True)
    ] == [
        full.params,
        full.params,
    ]


def test_fsdp_splits_the_state_and_data_does_not(make_spec: MakeSpec) -> None:
    spec = make_spec({})
    alone, data, fsdp = (estimate_device_memory(spec, ONE | degrees) for degrees in ({}, {"data": 4}, {"fsdp": 4}))

    assert data == alone
    assert alone.params / 4 < fsdp.params < alone.params / 3.9  # norms are not split
    assert fsdp.residuals_per_sequence == alone.residuals_per_sequence


def test_rules_determine_how_parameters_are_sharded(make_spec: MakeSpec) -> None:
    degrees = ONE | {"fsdp": 4}
    built_in, whole = (
        estimate_device_memory(make_spec({"parallelism.rules": rules}), degrees) for rules in ({}, {"embed": []})
    )

    assert whole.params == estimate_device_memory(make_spec({}), ONE).params
    assert built_in.params < whole.params / 3.9
    assert built_in.residuals_per_sequence == whole.residuals_per_sequence


def test_optimizer_sharding_over_data_reduces_only_the_optimizer_state(make_spec: MakeSpec) -> None:
    degrees = ONE | {"data": 4, "fsdp": 2}
    whole, spread = (
        estimate_device_memory(make_spec({"parallelism.shardOptimizerOverData": over}), degrees)
        for over in (False, True)
    )

    assert whole.optimizer / 4 <= spread.optimizer < whole.optimizer / 3.9
    assert [
        one.fixed_bytes - other.fixed_bytes for one, other in zip(spread.peak_points, whole.peak_points, strict=True)
    ] == [
        whole.params,  # gathered anew
        whole.params,
    ]
    assert spread.chunked_loss.fixed_bytes - whole.chunked_loss.fixed_bytes == whole.params
    same = {"optimizer": whole.optimizer, "peak_points": whole.peak_points, "chunked_loss": whole.chunked_loss}
    assert dataclasses.replace(spread, **same) == whole


def test_optimizer_sharding_over_data_replicates_indivisible_tensors(make_spec: MakeSpec) -> None:
    spec = make_spec({"parallelism.shardOptimizerOverData": True})
    odd = estimate_device_memory(spec, ONE | {"data": 7})

    assert odd.optimizer == estimate_device_memory(spec, ONE).optimizer


def test_tensor_axis_shards_saved_activations_and_logits(make_spec: MakeSpec) -> None:
    spec = make_spec({"model.vocabSize": 258})
    alone, split = (estimate_device_memory(spec, ONE | {"tensor": degree}) for degree in (1, 2))

    assert split.peak_points[0].per_sequence * 2 == alone.peak_points[0].per_sequence
    assert (
        alone.residuals_per_sequence / 2 < split.residuals_per_sequence < alone.residuals_per_sequence
    )  # norms are not split


def test_remat_saves_only_the_hidden_states_of_each_layer(make_spec: MakeSpec) -> None:
    none, full = (estimate_device_memory(make_spec({"memory.remat": remat}), ONE) for remat in ("none", "full"))

    assert full.residuals_per_sequence == 2 * 64 * 64 * 4
    assert full.peak_points[0] == none.peak_points[0]
    assert (
        full.peak_points[1].per_sequence == none.peak_points[1].per_sequence - 4 * 64 * 64 * 4
    )  # the gradients of the scores


def test_without_remat_saved_bytes_grow_faster_than_the_length(make_spec: MakeSpec) -> None:
    short, long = (
        estimate_device_memory(make_spec({"training.sequenceLength": n}), ONE).residuals_per_sequence for n in (64, 128)
    )

    scores = 2 * 4 * (4 + 4)  # layers, heads, bytes
    assert long - 2 * short == scores * (128**2 - 2 * 64**2)


def test_the_larger_of_two_moments_counts(make_spec: MakeSpec) -> None:
    vocabulary, layer = (make_spec({"model.vocabSize": vocab}) for vocab in (100_000, 257))
    head, inside = (estimate_device_memory(spec, ONE) for spec in (vocabulary, layer))

    for device, moment in ((head, head.peak_points[0]), (inside, inside.peak_points[1])):
        assert (
            device.estimate(3, 1).temporaries
            == device.gathered_embedding + moment.fixed_bytes + 3 * moment.per_sequence
        )


def test_the_table_is_kept_where_more_microsteps_come(make_spec: MakeSpec) -> None:
    device = estimate_device_memory(make_spec({}), ONE)

    kept, freed = (device.estimate(3, 1, keeps_embedding=keeps) for keeps in (True, False))

    assert kept.total - freed.total == device.gathered_embedding


@pytest.mark.parametrize(("fsdp", "share"), [(1, 0), (2, 1), (4, 1), (8, 0.5)])
def test_a_split_head_has_pieces_of_its_gradient_on_the_way(make_spec: MakeSpec, fsdp: int, share: float) -> None:
    spec = make_spec({"slices.accelerator": "tpu-v5e"})
    device = estimate_device_memory(spec, ONE | {"fsdp": fsdp})

    assert (
        device.peak_points[0].fixed_bytes
        == device.gathered_lm_head + share * 4 * spec.model.vocab_size * spec.model.embed_dim
    )


CHUNKED = {"memory.lossChunks": 8, "model.vocabSize": 100_000}
LONG = {"model.vocabSize": 1_000_000, "training.sequenceLength": 128, "slices.accelerator": "tpu-v5e"}
"""Two sequences have fewer logits than a GiB holds, three have more."""


def test_whole_logits_take_at_most_a_gib_unless_the_spec_chooses(make_spec: MakeSpec) -> None:
    chosen, whole, chunked = (
        estimate_device_memory(make_spec(LONG | changes), ONE)
        for changes in ({}, {"memory.lossChunks": 1}, {"memory.lossChunks": 8})
    )

    assert [device.max_whole_sequences for device in (chosen, whole, chunked)] == [2, MAX_SEQUENCES, 0]
    assert chosen.estimate(2, 1) == whole.estimate(2, 1)
    assert chosen.estimate(3, 1).temporaries < whole.estimate(3, 1).temporaries


def test_chunks_of_logits_take_so_many_bytes(make_spec: MakeSpec) -> None:
    spec = make_spec(CHUNKED)
    device = estimate_device_memory(spec, ONE)
    logits, head = device.logits_per_sequence, 4 * spec.model.vocab_size * spec.model.embed_dim
    hidden = 4 * spec.training.sequence_length * spec.model.embed_dim * 4

    assert device.gathered_lm_head == head
    assert device.estimate(3, 1).temporaries == device.gathered_embedding + 2 * head + 3 * (logits // 8 + hidden)


@pytest.mark.parametrize(
    "changes",
    [{"model.vocabSize": 257}, {"model.vocabSize": 100_000}, CHUNKED, LONG],
    ids=["layers", "logits", "chunks", "whole logits, then chunks"],
)
@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_most_rows_are_those_that_just_fit(make_spec: MakeSpec, rows: int, changes: dict[str, Any]) -> None:
    device = estimate_device_memory(make_spec(changes), ONE)
    enough = -int(-device.estimate(rows, 1).total // USABLE_MEMORY_SHARE)

    assert device.max_sequences(enough + 1, 1) == rows
    assert device.max_sequences(enough - 1, 1) == max(rows - 1, 0)


@pytest.mark.parametrize("changes", [{}, CHUNKED])
def test_no_row_fits_where_the_parameters_do_not(make_spec: MakeSpec, changes: dict[str, Any]) -> None:
    assert estimate_device_memory(make_spec(changes), ONE).max_sequences(1000, 1) == 0
