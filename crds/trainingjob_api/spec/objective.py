"""The objective section: what training minimizes."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import NO_UNIT, Example, alternatives, cel_rule
from trainingjob_api.spec.distillation import Distill, Features, StoredProbabilities, Teacher

ObjectiveType = Literal["nextToken", "sft", "dpo", "distill"]
DEFAULT_TYPE: ObjectiveType = "nextToken"
SFT: ObjectiveType = "sft"
DPO: ObjectiveType = "dpo"
DISTILL: ObjectiveType = "distill"


class Sft(Strict):
    """Supervised fine-tuning: the loss of the answers in conversations."""

    loss_on: Annotated[Literal["assistant", "all"], Example("assistant")] = Field(
        default="assistant",
        description="Tokens that have a loss: `assistant` is the turns of the assistant, or the completions. `all` is "
        "every token.",
    )


class Dpo(Strict):
    """Direct preference optimization (Rafailov et al., arXiv 2305.18290), compared with the model at the start."""

    beta: Annotated[float, Field(gt=0, le=100), NO_UNIT, Example(0.1)] = Field(
        default=0.1,
        description="Factor of the difference to the reference in rewards. Smaller values let the model move further.",
    )
    label_smoothing: Annotated[float, Field(ge=0, le=0.49), NO_UNIT, Example(0.1)] = Field(
        default=0.0, description="Assumed share of pairs with the two answers the wrong way round (conservative DPO)."
    )


class Objective(Strict):
    """Minimized loss: the cross-entropy of the next token, with auxiliary losses."""

    type: Annotated[ObjectiveType, Example("sft")] = Field(
        default=DEFAULT_TYPE,
        description="Kind of objective: `nextToken` has a loss on every token, `sft` on the answers of conversations. "
        "`dpo` prefers the chosen to the rejected answer of a pair, and `distill` imitates a teacher.",
        exclude_if=lambda kind: kind == DEFAULT_TYPE,  # an agent before 0.1 refuses a field that it does not know
    )
    z_loss: Annotated[Annotated[float, Field(gt=0, le=1)] | None, NO_UNIT, Example(1e-4)] = Field(
        default=None,
        description="Weight of the squared log-partition of the logits in the minimized loss, not in the reported one "
        "(PaLM, arXiv 2204.02311). Unset: there is none.",
    )
    sft: Sft | None = Field(
        default=None,
        description="Options of `type: sft`. Unset: the defaults of its fields.",
        exclude_if=lambda sft: sft is None,  # as for `type`
    )

    dpo: Dpo | None = Field(
        default=None,
        description="Options of `type: dpo`. Unset: the defaults of its fields.",
        exclude_if=lambda dpo: dpo is None,  # as for `type`
    )

    distill: Distill | None = Field(
        default=None,
        description="Options of `type: distill`, which requires them.",
        exclude_if=lambda distill: distill is None,  # as for `type`
    )

    cel_rules = (
        *alternatives(SFT, DPO, DISTILL),
        cel_rule("self.type != 'distill' || has(self.distill)", "must be set with `type: distill`.", DISTILL),
    )

    @property
    def sequences_per_example(self) -> int:
        """Return the sequences of one example of a batch: two for a pair of answers."""
        return 2 if self.type == DPO else 1

    @property
    def masks_prompts(self) -> bool:
        """Return whether only answers have a loss in sources that have answers, not every token."""
        return self.type in (DPO, DISTILL) or (self.type == SFT and (self.sft or Sft()).loss_on == "assistant")

    @property
    def teacher(self) -> Teacher | None:
        """Return the model that runs in each step of a distillation. None: there is none."""
        return self.distill.teacher if self.type == DISTILL and self.distill else None

    @property
    def probabilities(self) -> StoredProbabilities | None:
        """Return the stored probabilities of a teacher that the job distills. None: it reads none."""
        return self.distill.probabilities if self.type == DISTILL and self.distill else None

    @property
    def features(self) -> Features | None:
        """Return the hidden states that the job compares with those of its teacher. None: it compares none."""
        return self.distill.features if self.type == DISTILL and self.distill else None
