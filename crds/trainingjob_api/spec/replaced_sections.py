"""Values of the sections that `program.command` replaces. They keep types simple; no rule or plan reads them."""

from trainingjob_api.base import Strict
from trainingjob_api.meta import CelRule, cel_rule
from trainingjob_api.spec.data import Data, TrainSource
from trainingjob_api.spec.model import Model
from trainingjob_api.spec.optimizer import Optimizer
from trainingjob_api.spec.training import Training

UNUSED_MODEL = Model(vocab_size=2, embed_dim=2, mlp_dim=2, num_layers=1, num_heads=1)
UNUSED_DATA = Data(train=(TrainSource(name="unused", format="synthetic"),))
UNUSED_TRAINING = Training(global_batch_size=1, sequence_length=2)
UNUSED_OPTIMIZER = Optimizer(learning_rate=1e-9)
REPLACED_SECTIONS: dict[str, Strict] = {
    "model": UNUSED_MODEL,
    "data": UNUSED_DATA,
    "training": UNUSED_TRAINING,
    "optimizer": UNUSED_OPTIMIZER,
}
"""The sections that a job must have, unless it has `program.command`, which gives them these values."""
TRAINER_SECTIONS = (
    *REPLACED_SECTIONS,
    "parallelism",
    "lora",
    "tokenizer",
    "objective",
    "schedule",
    "precision",
    "memory",
    "protection",
    "evaluation",
    "metrics",
    "profiling",
)
"""The sections that only the built-in trainer reads."""


def is_unused(section: Strict) -> bool:
    """Return whether a section is the value of a job with `program.command`, which reads the same without it."""
    return section in REPLACED_SECTIONS.values()


def require_sections() -> tuple[CelRule, ...]:
    """Return the rules that require each of these sections unless `program.command` replaces it."""
    return tuple(
        cel_rule(
            f"has(self.program) && !has(self.program.entrypoint) || has(self.{name})",
            "must be set, unless `program.command` is.",
            name,
        )
        for name in REPLACED_SECTIONS
    )
