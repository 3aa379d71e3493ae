"""The plan of a job with `program`: all sizes are possible, and nothing is estimated."""

from trainingjob_operator.core.planner.plan import Plan
from trainingjob_operator.core.planner.planning import plan_job
from trainingjob_operator.core.planner.summary import describe_parameters, describe_plan
from trainingjob_operator.core.validation.validate import validate_job

PROGRAM = {
    "slices": {"accelerator": "tpu-v5p", "topology": "2x2x2", "min": 1, "max": 3},
    "program": {"command": ["python", "train.py", "--name=a b"]},
    "checkpoint": {"uri": "/shared/run"},
    "runtime": {"volumes": [{"name": "shared", "claimName": "shared", "mountPath": "/shared"}]},
}


def make_plan() -> Plan:
    checked = validate_job("program", PROGRAM)
    assert (checked.problems, checked.warnings) == ((), ())
    assert checked.plan
    return checked.plan


def test_every_size_is_possible() -> None:
    plan = make_plan()

    assert plan.allowed_sizes == (1, 2, 3)
    assert [(one.layout and one.layout.num_hosts, one.layout and one.layout.num_devices) for one in plan.sizes] == [
        (2, 8),
        (4, 16),
        (6, 24),
    ]
    assert plan == plan_job(plan.spec)


def test_nothing_is_estimated() -> None:
    plan = make_plan()
    status = describe_plan(plan)

    assert (plan.num_parameters, plan.kernels, plan.snapshots, [one.memory for one in plan.sizes]) == (
        0,
        (),
        None,
        [None] * 3,
    )
    assert [(one.slices, one.devices, one.valid, one.mesh, one.memory_bytes) for one in status.sizes] == [
        (1, 8, True, "", 0),
        (2, 16, True, "", 0),
        (3, 24, True, "", 0),
    ]
    assert (status.network, status.kernels) == ("", ())
    assert describe_parameters(plan) == "program python train.py '--name=a b'"


def test_defaults_that_the_api_server_writes_are_accepted() -> None:
    defaults = {"parallelism": {}, "precision": {}, "schedule": {"type": "cosine"}, "metrics": {"everySteps": 10}}

    assert validate_job("program", {**PROGRAM, **defaults}).problems == ()
