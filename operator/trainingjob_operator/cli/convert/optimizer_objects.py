"""Hyperparameters of an optimizer. The sources have them for all types at once, a job in the object of its type."""

from typing import Any

from trainingjob_operator.cli.convert.draft_job import DraftJob

HYPERPARAMETERS = {"lion": ("beta1", "beta2"), "sgd": ()}
"""Hyperparameters of a type that the sources name like those of Adam."""
ONE_RATE = "`optimizer.weightDecay.rate` is one rate for all tensors: the job has that of matrices"


def move_hyperparameters(draft: DraftJob) -> None:
    """Move hyperparameters to the object of the job's type. Those of other types have no effect in a source."""
    section = draft.spec["optimizer"]
    kind = section.get("type", "adamw")
    if kind != "muon":
        section.pop("muon", None)
    if kind == "adamw" or "adamw" not in section:
        return
    hyperparameters = section.pop("adamw")
    if kind == "muon":
        draft.set("optimizer.muon.adamw", hyperparameters)
    elif supported := {name: hyperparameters[name] for name in HYPERPARAMETERS[kind] if name in hyperparameters}:
        draft.set(f"optimizer.{kind}", supported)


def set_decay_of_muon(draft: DraftJob, rate: Any, other_key: str, other_rate: Any) -> None:
    """Set the weight decay of a job with Muon: `rate` is that of matrices, `other_rate` that of other tensors."""
    draft.set("optimizer.weightDecay.rate", rate)
    if other_rate != rate:
        draft.omit(other_key, other_rate, ONE_RATE)
