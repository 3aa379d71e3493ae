"""Hyperparameters of an optimizer. The sources have them for all types at once, a job in the object of its type."""

from trainingjob_operator.cli.convert.draft_job import DraftJob

HYPERPARAMETERS = {"lion": ("beta1", "beta2"), "sgd": ()}
"""Hyperparameters of a type that the sources name like those of Adam."""


def move_hyperparameters(draft: DraftJob) -> None:
    """Move `optimizer.adamw` to the object of the job's type. Those that the type lacks have no effect in a source."""
    names = HYPERPARAMETERS.get(draft.get("optimizer.type"))
    if names is None or not draft.get("optimizer.adamw"):
        return
    given = draft.spec["optimizer"].pop("adamw")
    if moved := {name: given[name] for name in names if name in given}:
        draft.set(f"optimizer.{draft.get('optimizer.type')}", moved)
