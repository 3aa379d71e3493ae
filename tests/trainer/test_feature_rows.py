"""Jobs with many features at once: what validation and planner accept, the trainer can build. Nothing is compiled."""

from typing import Any

import jax
import pytest

from tests.support.trainer.feature_rows import GROUPS, NUM_ROWS, list_rows, validate_row
from trainingjob_trainer.data.loader import batch_shape
from trainingjob_trainer.monitoring.evaluate_programs import compile_evaluations
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.sampling.token_programs import PROGRAM_NAMES, make_generator
from trainingjob_trainer.step import StepPrograms

QUICK = (0, 1, 3, 4)
"""Rows of four meshes, with as many objectives and schedules as possible."""


class Tracer:
    """In place of the compile cache. It traces programs, and returns none."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def compile_or_load(self, name: str, function: Any, arguments: Any, result: Any, **options: Any) -> None:
        """Check that a program returns the declared structure, in which the results of a loaded program are put."""
        traced = jax.jit(function, **options).trace(*arguments)
        assert jax.tree.structure(traced.out_info) == jax.tree.structure(result)
        self.names.add(name)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "number",
    [pytest.param(number, marks=[] if number in QUICK else pytest.mark.slow) for number in range(NUM_ROWS)],
)
def test_features_of_a_valid_job_work_together(number: int) -> None:
    row = list_rows()[number]
    valid = validate_row(row)
    assert valid.spec
    assert valid.plan
    spec, layout, tracer = valid.spec, valid.plan.sizes[0].layout, Tracer()
    assert layout
    mesh = build_mesh(jax.devices()[: layout.num_devices], layout)
    steps = StepPrograms(spec, mesh)
    programs: Any = tracer

    steps.compile_train(programs, batch_shape(layout))
    compile_evaluations(steps, programs, spec, layout)
    steps.compile_average(programs)
    generator = make_generator(spec, steps.state_shapes.params, mesh)
    assert generator
    for name in PROGRAM_NAMES:
        generator.compile_program(name, programs)

    assert {"train", *PROGRAM_NAMES} < tracer.names, row
    assert ("average" in tracer.names) == (("average", "average") in row)


@pytest.mark.thorough
def test_each_feature_is_in_several_rows_beside_others() -> None:
    rows = list_rows()

    for group, features in GROUPS.items():
        for feature in features:
            joined = {other for row in rows if (group, feature) in row for other in row}
            assert len(joined) > 20, (group, feature)
