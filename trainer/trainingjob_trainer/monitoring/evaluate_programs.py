"""The programs of evaluations: one for each number of sequences that a device evaluates at once."""

from typing import NamedTuple

from trainingjob_api.spec.evaluation import Evaluation
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.world import Layout
from trainingjob_trainer.data.loader import batch_shape
from trainingjob_trainer.objectives.scoring import EvaluateStep
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.state import BatchShape
from trainingjob_trainer.step import StepPrograms


class EvaluateProgram(NamedTuple):
    """A program that evaluates held-out batches, and the shape of these batches."""

    run: EvaluateStep
    shape: BatchShape


def list_evaluate_layouts(spec: TrainingJobSpec, layout: Layout) -> dict[str, Layout]:
    """Return the layout of the batches of each program, by the name of the program, in the order of the evaluations."""
    layouts = [_find_layout(spec, layout, evaluation) for evaluation in spec.evaluation]
    return {_name_program(layout, evaluate_layout): evaluate_layout for evaluate_layout in layouts}


def compile_evaluations(
    steps: StepPrograms, programs: CompileCache, spec: TrainingJobSpec, layout: Layout
) -> dict[str, EvaluateProgram]:
    """Return the program of each evaluation, by the name of the evaluation. Evaluations of one layout share one."""
    compiled = {
        name: EvaluateProgram(
            steps.compile_evaluate(programs, batch_shape(evaluate_layout), name), batch_shape(evaluate_layout)
        )
        for name, evaluate_layout in list_evaluate_layouts(spec, layout).items()
    }
    return {
        evaluation.name: compiled[_name_program(layout, _find_layout(spec, layout, evaluation))]
        for evaluation in spec.evaluation
    }


def _find_layout(spec: TrainingJobSpec, layout: Layout, evaluation: Evaluation) -> Layout:
    return layout.for_evaluation(evaluation.max_per_device_batch, spec.sequences_per_example)


def _name_program(layout: Layout, held_out: Layout) -> str:
    """Return the name of a program. Its rows and the layout of training, a part of the cache's key, give its shape."""
    is_as_in_training = held_out.rows_per_shard == layout.rows_per_shard
    return "evaluate" if is_as_in_training else f"evaluate-{held_out.rows_per_shard}"
