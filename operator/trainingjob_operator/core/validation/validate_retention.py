"""Rules about checkpoint retention: stages and the best steps."""

from collections.abc import Iterator

from trainingjob_api.problem import Problem
from trainingjob_api.shares import MAX_STEPS
from trainingjob_api.spec.checkpoint import KeepStage
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_operator.core.planner.mesh import nearest_multiples
from trainingjob_operator.core.planner.problem_messages import quote_field
from trainingjob_operator.core.validation.rule import Rule, find_unknown_evaluation

STAGES = "checkpoint.keep.stages"


def check_stages(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Stages of `checkpoint.keep` must be in ascending order. Only the last one may have no `until`."""
    stages, end, suggested = spec.checkpoint.keep.stages or (), 0, 0
    for number, stage in enumerate(stages):
        later = stages[number + 1 :]
        if stage.until is None and later:
            message = "must be set. Only the last stage may last until training ends."
        elif stage.until is not None and stage.until <= end:
            message = f"{stage.until} must be greater than {end}, where an earlier stage ends."
        else:
            end = stage.until or end
            suggested = max(suggested, end)
            continue
        nearest = _nearest_end(stage, suggested, later)
        suggested = max([suggested, *map(int, nearest)])
        yield Problem(f"spec.{STAGES}[{number}].until", stage.until, message, nearest)


def _nearest_end(stage: KeepStage, start: int, later: tuple[KeepStage, ...]) -> tuple[str, ...]:
    """Return the first end at which a stage keeps a step, or the last one before the later stages end."""
    limit = min(
        (later_stage.until - 1 for later_stage in later if later_stage.until and later_stage.until > start),
        default=MAX_STEPS,
    )
    end = min(start // stage.every * stage.every + stage.every, limit)
    return (str(end),) if end > start else ()


def check_best_evaluation(spec: TrainingJobSpec) -> Iterator[Problem]:
    """`checkpoint.keep.best.evaluation` must be the name of an evaluation."""
    if best := spec.checkpoint.keep.best:
        yield from find_unknown_evaluation("spec.checkpoint.keep.best.evaluation", best.evaluation, spec)


def warn_of_empty_stages(spec: TrainingJobSpec) -> Iterator[Problem]:
    """A stage of `checkpoint.keep` keeps no step without a saved multiple of its `every`."""
    save, steps = spec.checkpoint.save.every_steps, spec.training.step_limit
    for path, stage, start, end in _list_ranges(spec):
        saved = _last_multiple(save, start, end)
        if start >= end:
            message = (
                f"begins after step {start}, but {quote_field('spec.training.steps', steps)} is the end. Remove it."
            )
            yield Problem(path, None, message)
        elif not saved:
            saves = quote_field("spec.checkpoint.save.everySteps", save)
            message = f"keeps no step, because no multiple of {saves} is from step {start + 1} to {end}. Remove it."
            yield Problem(path, None, message)
        elif not _last_multiple(stage.every, start, end):
            message = (
                f"{stage.every} should have a multiple from step {start + 1} to {end}. Otherwise the stage is empty."
            )
            yield Problem(f"{path}.every", stage.every, message, (str(saved),))


def warn_of_unaligned_stages(spec: TrainingJobSpec) -> Iterator[Problem]:
    """Stages of `checkpoint.keep` keep only steps that are saved."""
    save = spec.checkpoint.save.every_steps
    for path, stage, start, end in _list_ranges(spec):
        saved = _last_multiple(save, start, end)
        if saved and stage.every % save and _last_multiple(stage.every, start, end):
            message = (
                f"{stage.every} should be a multiple of {quote_field('spec.checkpoint.save.everySteps', save)}. Only "
                "saved steps can be kept."
            )
            nearest = [
                multiple for multiple in nearest_multiples(save, stage.every) if _last_multiple(multiple, start, end)
            ]
            yield Problem(f"{path}.every", stage.every, message, tuple(map(str, nearest or [saved])))


def _list_ranges(spec: TrainingJobSpec) -> Iterator[tuple[str, KeepStage, int, int]]:
    """Yield path and stage, the step after which it begins, and its last step, up to a stage without end."""
    start = 0
    for number, stage in enumerate(spec.checkpoint.keep.stages or ()):
        end = min(stage.until or spec.training.step_limit, spec.training.step_limit)
        yield f"spec.{STAGES}[{number}]", stage, start, end
        if stage.until is None:
            return
        start = stage.until


def _last_multiple(factor: int, start: int, end: int) -> int:  # 0: there is none
    """Return the last multiple of a factor after the start and up to the end."""
    multiple = end // factor * factor
    return multiple if multiple > start else 0


RULES = (
    Rule((STAGES,), check_stages),
    Rule(("checkpoint.keep.best", "evaluation"), check_best_evaluation),
)
WARNINGS = (
    Rule(("checkpoint.save.everySteps", STAGES, "training.steps"), warn_of_unaligned_stages),
    Rule(("checkpoint.save.everySteps", STAGES, "training.steps"), warn_of_empty_stages),
)
