"""The teacher of a distillation in the plan: its parameters, forward pass, logits and gathers, and a mesh that fits."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.core.planner.test_frozen import H100, ONE, layout_of
from trainingjob_api.network.resolve import resolve
from trainingjob_api.optim import FLOAT_BYTES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.teacher import describe_teacher
from trainingjob_operator.core.planner.flops import count_step_flops, count_useful_flops
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN
from trainingjob_operator.core.planner.memory import estimate_device_memory
from trainingjob_operator.core.planner.optimizer_offload import may_hold_state
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.size_planner import SizePlanner
from trainingjob_operator.core.planner.snapshots import snapshot_bytes
from trainingjob_operator.core.planner.strategy import describe_search
from trainingjob_operator.core.planner.summary import describe_parameters
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_operator.core.units import format_size

type MakeSpec = Callable[[dict[str, Any]], TrainingJobSpec]

TEACHER = {"vocabSize": 256, "embedDim": 128, "mlpDim": 512, "numLayers": 8, "numHeads": 8}


def distill(model: dict[str, Any] = TEACHER, **options: Any) -> dict[str, Any]:
    teacher = {"model": model, "initializeFrom": {"uri": "/shared/teacher", "step": 1}}
    return {"objective": {"type": "distill", "distill": {"teacher": teacher, **options}}, "model.vocabSize": 256}


PLAIN = {"model.vocabSize": 256}


def teacher_of(spec: TrainingJobSpec) -> TrainingJobSpec:
    teacher = describe_teacher(spec)
    assert teacher
    return teacher


def test_a_device_holds_the_teacher_in_the_compute_format(make_spec: MakeSpec) -> None:
    plain, spec = (make_spec(changes | {"precision.compute": "bfloat16"}) for changes in (PLAIN, distill()))
    size = resolve(teacher_of(spec).model).num_parameters

    before, after = (estimate_device_memory(one, ONE) for one in (plain, spec))

    assert after.params - before.params == 2 * size
    assert (after.gradients, after.optimizer) == (before.gradients, before.optimizer)
    hidden = spec.training.sequence_length * 128 * 2
    assert after.residuals_per_sequence - before.residuals_per_sequence == hidden
    assert after.peak_points[0].per_sequence == 2 * before.peak_points[0].per_sequence, "the logits of both"
    assert after.chunked_loss.fixed_bytes > before.chunked_loss.fixed_bytes
    assert len(after.peak_points) == len(before.peak_points) + 1


FEATURES = {"layers": [{"student": 1, "teacher": 2}, {"student": 2, "teacher": 8}]}
SAME_WIDTH = TEACHER | {"embedDim": 64}


def test_compared_layers_wait_for_the_loss_and_pass_the_stages(make_spec: MakeSpec) -> None:
    plain, spec = (
        make_spec(H100 | distill(SAME_WIDTH, **one) | {"model.embedDim": 64}) for one in ({}, {"features": FEATURES})
    )
    layout = layout_of(stage=2, fsdp=4)

    before, after = (estimate_device_memory(one, ONE).residuals_per_sequence for one in (plain, spec))
    sent, more = (
        sum_by_axes(predict_traffic(describe_workload(one), layout, "cuda"))["ici", ("stage",)] for one in (plain, spec)
    )

    hidden = spec.training.sequence_length * 64 * FLOAT_BYTES[spec.precision.compute]
    assert after - before == 2 * 2 * hidden
    assert more > 2 * sent


def test_compared_layers_pass_alternating_stages_both_ways(make_spec: MakeSpec) -> None:
    pipeline = {"parallelism.pipeline": {"schedule": "oneForwardOneBackward"}, "model.embedDim": 64}
    plain, spec = (make_spec(H100 | distill(SAME_WIDTH, **one) | pipeline) for one in ({}, {"features": FEATURES}))
    before, after = (estimate_device_memory(one, {**ONE, "stage": 2}) for one in (plain, spec))
    sent, more = (
        sum_by_axes(predict_traffic(describe_workload(one), layout_of(stage=2, fsdp=4), "cuda"))["ici", ("stage",)]
        for one in (plain, spec)
    )

    hidden = spec.training.sequence_length * 64 * FLOAT_BYTES[spec.precision.compute]
    assert after.residuals_per_sequence - before.residuals_per_sequence == 2 * 4 * hidden
    assert after.teacher_per_sequence - before.teacher_per_sequence == 2 * hidden
    assert more > 2 * sent


@pytest.mark.parametrize("schedule", ["gpipe", "circular", "oneForwardOneBackward"])
def test_a_teacher_returns_no_gradients_through_the_stages(make_spec: MakeSpec, schedule: str) -> None:
    pipeline = {"model.numLayers": 4, "parallelism.pipeline": {"schedule": schedule}}
    layout, sent = layout_of(stage=2, fsdp=4), []
    model = TEACHER | {"numLayers": 4, "embedDim": 64}
    for one in (PLAIN, distill(model)):
        spec = make_spec(H100 | one | pipeline | {"model.embedDim": 64})
        sent.append(sum_by_axes(predict_traffic(describe_workload(spec), layout, "cuda"))["ici", ("stage",)])

    assert 0 < sent[1] - sent[0] < 0.8 * sent[0]


def test_a_mesh_search_depends_on_the_compared_layers(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    plain, spec, same = (
        describe_search(make_spec(H100 | distill(SAME_WIDTH, **one) | {"model.embedDim": 64}), shape)
        for one in ({}, {"features": FEATURES}, {"features": FEATURES | {"weight": 3}})
    )

    assert plain != spec
    assert spec == same


def stored(per_token: int = 12) -> dict[str, Any]:
    options = {"probabilities": {"uri": "/shared/taught", "perToken": per_token}}
    return {"objective": {"type": "distill", "distill": options}, "model.vocabSize": 256}


def test_stored_probabilities_cost_their_bytes_alone(make_spec: MakeSpec) -> None:
    plain, spec = (make_spec(changes) for changes in (PLAIN, stored()))
    before, after = (estimate_device_memory(one, ONE) for one in (plain, spec))
    flops = [count_step_flops(describe_workload(one), layout_of(fsdp=8)) for one in (plain, spec)]

    length = spec.training.sequence_length
    assert (after.params, after.optimizer) == (before.params, before.optimizer)
    assert after.residuals_per_sequence - before.residuals_per_sequence == length * (12 * 6 + 4)
    assert after.peak_points[0].per_sequence - before.peak_points[0].per_sequence == 4 * length * 256
    assert after.chunked_loss.fixed_bytes > before.chunked_loss.fixed_bytes
    assert flops[0] == flops[1]
    assert describe_parameters(plan_job(spec)).endswith(
        f" · stored probabilities: 52 B a token, {format_size(52 * plan_job(spec).tokens_per_step)} a step"
    )


def test_a_mesh_search_depends_on_the_number_of_stored_probabilities(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    plain, one, more = (describe_search(make_spec(H100 | changes), shape) for changes in (PLAIN, stored(), stored(13)))

    assert one
    assert one == describe_search(make_spec(H100 | stored()), shape)
    assert len({plain, one, more}) == 3


def test_no_snapshot_has_the_teacher(make_spec: MakeSpec) -> None:
    plain, spec = (snapshot_bytes(make_spec(changes), layout_of(fsdp=8)) for changes in (PLAIN, distill()))

    assert plain == spec


def test_all_microbatches_of_alternating_stages_keep_the_hidden_states_of_the_teacher(make_spec: MakeSpec) -> None:
    pipeline = {"parallelism.pipeline": {"schedule": "oneForwardOneBackward"}, "precision.compute": "bfloat16"}
    plain, spec = (make_spec(changes | pipeline) for changes in (PLAIN, distill()))
    before, after = (estimate_device_memory(one, {**ONE, "stage": 2}) for one in (plain, spec))
    hidden = spec.training.sequence_length * 128 * 2

    assert after.residuals_per_sequence == before.residuals_per_sequence
    many, one = (after.estimate(3, 1, microbatches=number).activations for number in (8, 1))
    assert many - one == 3 * 7 * hidden
    most = [after.max_sequences(10**9, 1, microbatches=number) for number in (1, 1000)]
    assert most[0] > most[1]


@pytest.mark.parametrize(("schedule", "passes"), [("gpipe", 3), ("circular", 3), ("oneForwardOneBackward", 4)])
def test_the_teacher_runs_forward(make_spec: MakeSpec, schedule: str, passes: int) -> None:
    pipeline = {"model.numLayers": 4, "parallelism.pipeline": {"schedule": schedule}}
    plain, spec = (make_spec(changes | pipeline) for changes in (PLAIN, distill()))
    layout = layout_of(stage=2, fsdp=4)
    as_trained = count_step_flops(
        describe_workload(teacher_of(spec).model_copy(update={"optimizer": spec.optimizer})), layout
    )

    added = count_step_flops(describe_workload(spec), layout) - count_step_flops(describe_workload(plain), layout)

    assert added == pytest.approx(as_trained / passes, rel=0.05)


def test_the_teacher_counts_as_useful(make_spec: MakeSpec) -> None:
    plain, spec = (describe_workload(make_spec(changes)) for changes in (PLAIN, distill()))
    assert spec.reference

    added = count_useful_flops(spec) - count_useful_flops(plain)

    assert added == count_useful_flops(spec.reference.workload)
    assert added >= 2 * (resolve_size(spec.reference.workload.network) - 256 * 128)


def resolve_size(network: Any) -> int:
    return int(network.num_parameters)


def test_the_teacher_is_gathered(make_spec: MakeSpec) -> None:
    plain, spec = (
        sum(sum_by_axes(predict_traffic(describe_workload(make_spec(H100 | one)), layout_of(fsdp=8), "cuda")).values())
        for one in (PLAIN, distill())
    )

    assert spec > plain


def test_a_mesh_must_divide_both_models(make_spec: MakeSpec) -> None:
    odd = TEACHER | {"numHeads": 3, "headDim": 16}

    plan = plan_job(make_spec(distill(odd) | {"parallelism.ici": {"tensor": 2, "fsdp": 1, "data": -1}}))

    assert "`spec.objective.distill.teacher.model.numHeads` (3)" in plan.sizes[0].invalid_reason


def test_a_sequence_that_the_mesh_does_not_divide_is_one_problem(make_spec: MakeSpec) -> None:
    spec = make_spec(distill() | {"training.sequenceLength": 33, "parallelism.ici": {"context": 2, "data": -1}})

    shape = BUILTIN.find_shape(spec.slices.accelerator, spec.slices.topology)
    assert shape

    problems = SizePlanner(spec, shape).plan(1)

    assert isinstance(problems, list)
    assert [problem.path for problem in problems] == ["spec.parallelism.ici.context"]


def test_a_teacher_that_is_too_large_fits_no_mesh(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape
    huge = TEACHER | {"embedDim": 32768, "mlpDim": 131072, "numLayers": 100}

    assert may_hold_state(make_spec(H100 | distill()), shape, 1)
    assert not may_hold_state(make_spec(H100 | distill(huge)), shape, 1)


def test_a_mesh_search_depends_on_the_teacher_alone(make_spec: MakeSpec) -> None:
    shape = BUILTIN.find_shape("nvidia-h100", "8")
    assert shape

    plain, one, same, deeper = (
        describe_search(make_spec(H100 | changes), shape)
        for changes in (PLAIN, distill(), distill(weight=0.9), distill(TEACHER | {"numLayers": 9}))
    )

    assert one
    assert one.run().choice
    assert one == same
    assert len({plain, one, deeper}) == 3


def test_the_plan_shows_the_size_of_the_teacher(make_spec: MakeSpec) -> None:
    plain, spec = (describe_parameters(plan_job(make_spec(changes))) for changes in (PLAIN, distill()))

    assert spec.startswith(plain)
    assert spec.removeprefix(plain) == " · teacher of 2.16 M"
