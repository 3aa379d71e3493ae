"""Epochs in a config that limits steps and epochs alike, and ends at the lower limit."""

from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.source_rows import Values


def read_epochs(values: Values, key: str, steps_key: str, draft: DraftJob, *, default: int) -> None:
    """Set `training.epochs`, unless the source writes the steps. The schedule keeps the length of the source's steps.

    `key` and `steps_key` are the keys of the source. `default` is its number of epochs without a meaning.
    """
    epochs = values.get(key)
    if epochs in (None, default):
        return
    if steps_key in values:
        reason = f"`{steps_key}` ends training: write `training.epochs` instead if the epochs have fewer steps"
        draft.leave(key, epochs, reason)
        return
    if draft.get("schedule.steps") is None:
        draft.set("schedule.steps", draft.get("training.steps"))
    del draft.spec["training"]["steps"]
    draft.set("training.epochs", epochs)
