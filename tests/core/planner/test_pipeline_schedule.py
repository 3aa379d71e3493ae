"""A circular schedule in the plan: FLOPs, memory, traffic and bubble."""

from typing import Any

import pytest

from e2e.benchmarks.compiler_cases import CIRCULAR, DEEP, STAGES, job, training
from trainingjob_operator.core.planner.flops import count_step_flops
from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.roofline import predict_sizes
from trainingjob_operator.core.planner.strategy import choose_strategy
from trainingjob_operator.core.planner.traffic import predict_traffic, sum_by_axes
from trainingjob_operator.core.planner.workload import describe_workload
from trainingjob_operator.core.validation.validate_sizes import warn_of_pipeline_bubble

GPIPE: dict[str, Any] = {}
MODEL = DEEP | {"numLayers": 8}


def planned(schedule: dict[str, Any], microbatches: int = 4, **sections: Any) -> Plan:
    pipeline = {"pipeline": schedule.get("pipeline", {}) | {"microbatches": microbatches}}
    sections = {"model": MODEL, "training": training(64, 1024, 1)} | sections
    return plan_job(job("tpu-v5p", "2x2x1", {}, parallelism=STAGES | pipeline, **sections))


def test_a_stage_runs_its_layers_less_often_because_idle_ticks_are_shorter() -> None:
    found = []
    for schedule in (GPIPE, CIRCULAR):
        plan = planned(schedule)
        (size,) = plan.sizes
        assert size.layout
        workload = describe_workload(plan.spec)
        head = 6 * 1024 * 8192 * size.layout.rows_per_shard * 1024 * size.layout.accumulation * 4 // 2
        found.append(count_step_flops(workload, size.layout) - head)

    assert found[1] / found[0] == pytest.approx((4 + 1 / 2) / (4 + 1))


def test_the_parameters_of_the_layers_move_once_to_their_stages_and_their_gradients_back() -> None:
    sent = []
    for schedule in (GPIPE, CIRCULAR):
        plan = planned(schedule)
        (size,) = plan.sizes
        assert size.layout
        traffic = sum_by_axes(predict_traffic(describe_workload(plan.spec), size.layout, "tpu"))
        sent.append(traffic["ici", ("stage",)])
        # The layers gather their matrices for as many passes.
        assert traffic["ici", ("fsdp",)] > 0

    assert sent[1] > sent[0]


def test_memory_holds_the_groups_of_layers_beside_the_stored_ones() -> None:
    (gpipe,), (circular,) = (planned(schedule).sizes for schedule in (GPIPE, CIRCULAR))
    assert gpipe.memory
    assert circular.memory

    assert circular.memory.activations == gpipe.memory.activations  # of 5 microbatches, one of them rounded up
    assert circular.memory.temporaries > gpipe.memory.temporaries


def test_the_roofline_counts_shorter_idle_ticks() -> None:
    (gpipe,), (circular,) = (predict_sizes(planned(schedule, 2)).values() for schedule in (GPIPE, CIRCULAR))

    assert circular.matmul_seconds < gpipe.matmul_seconds
    assert circular.memory_seconds < gpipe.memory_seconds


def test_the_warning_of_a_bubble_counts_the_groups() -> None:
    wide = {"pipeline": {"schedule": "circular", "repeats": 4}}
    assert list(warn_of_pipeline_bubble(planned(GPIPE, 2), {}))
    assert not list(warn_of_pipeline_bubble(planned(wide, 2), {}))


def test_auto_chooses_stages_only_where_each_has_its_groups() -> None:
    plan = planned(CIRCULAR, model=MODEL | {"numLayers": 4})
    auto = type(plan.spec.parallelism).model_validate(
        {"strategy": "auto", "pipeline": {"schedule": "circular", "repeats": 4}}
    )

    choice = choose_strategy(plan.spec.model_copy(update={"parallelism": auto}), plan.shape)

    assert choice
    assert all(one.ici.stage == 1 for one in (choice.chosen, *choice.runners_up))
