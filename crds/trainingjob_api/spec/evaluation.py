"""The evaluation section: loss on held-out text, and texts that the model writes."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import ShortName, Strict
from trainingjob_api.int_or_text import IntOrText
from trainingjob_api.meta import NO_UNIT, Example, Live, Unit, cel_rule
from trainingjob_api.spec.data import TextSource

ALL_BATCHES = "all"
MAX_BATCHES = 100_000
BatchCount = Annotated[
    int | str,
    IntOrText(
        f"^{ALL_BATCHES}$",
        f"a whole number of batches, or `{ALL_BATCHES}`",
        lambda text: ALL_BATCHES if text.strip().lower() in _WHOLE_TEXT else text,
        minimum=1,
        maximum=MAX_BATCHES,
    ),
]
"""A number of batches, or the word for those of the whole text."""
_WHOLE_TEXT = (ALL_BATCHES, "full", "whole", "max", "*", "100%")


MessageRole = Literal["system", "developer", "user", "assistant", "tool"]
"""Author of a message of a conversation."""


class PromptMessage(Strict):
    """Message of a conversation that the model continues."""

    role: Annotated[MessageRole, Example("user")] = Field(description="Author of the message.")
    content: Annotated[str, Field(min_length=1, max_length=4096), Example("Hi!")] = Field(
        description="Text of the message."
    )


class TextSample(Strict):
    """Prompt that the model continues after an evaluation."""

    prompt: Annotated[Annotated[str, Field(min_length=1, max_length=4096)] | None, Example("Once upon a time")] = Field(
        default=None, description="Text that the model continues. Unset: `messages` must be set."
    )
    messages: tuple[PromptMessage, ...] = Field(
        default=(),
        max_length=32,
        description="Conversation that the model continues, in the text of the chat template. Empty: `prompt` must be "
        "set.",
        exclude_if=lambda messages: not messages,  # an agent before 0.1 refuses a field that it does not know
    )
    max_tokens: Annotated[int, Field(ge=1, le=8192), Unit("tokens"), Example(64)] = Field(
        default=64,
        description="Maximum number of tokens that the model generates. The end-of-document token ends the text "
        "earlier.",
    )
    temperature: Annotated[Annotated[float, Field(gt=0, le=100)] | None, NO_UNIT, Example(0.8)] = Field(
        default=None,
        description="Divisor of the logits before a token is drawn at random. Unset: the most likely token is taken.",
    )
    every_steps: Annotated[
        Annotated[int, Field(ge=1, le=100_000_000)] | None, Unit("optimizer steps"), Example(100)
    ] = Field(
        default=None,
        description="Steps between two samples, a multiple of the evaluation's `everySteps`. Unset: each evaluation "
        "has the sample.",
    )

    cel_rules = (
        cel_rule(
            "has(self.prompt) != (has(self.messages) && size(self.messages) > 0)",
            "must have either `prompt` or `messages`.",
        ),
    )


class Evaluation(TextSource):
    """Loss on text that is never trained on."""

    # Another name makes it another text: the API server compares the items of this list by their names.
    name: Annotated[ShortName, Example("held-out"), Live()] = Field(
        description="Name of the source in messages and metrics."
    )
    every_steps: Annotated[
        int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(100), Live(in_world=True)
    ] = Field(description="Steps between two evaluations.")
    num_batches: Annotated[BatchCount, Unit("global batches"), Example(8)] = Field(
        default=8,
        description="Number of global batches to average over, or `all`: each sequence of the text once. Fewer if the "
        "text is shorter.",
    )
    max_per_device_batch: Annotated[
        Annotated[int, Field(ge=1, le=65536)] | None, Unit("sequences a device"), Example(4)
    ] = Field(
        default=None,
        description="Maximum number of sequences, or of pairs, that a device evaluates at once; the scores stay the "
        "same. Unset: as many as in a training step.",
        exclude_if=lambda number: number is None,  # an agent before 0.1 refuses a field that it does not know
    )
    samples: tuple[TextSample, ...] = Field(
        default=(),
        max_length=16,
        description="Prompts that the model continues after the evaluation. The texts are in the log, in "
        "`samples.jsonl` beside the metrics, and in the trackers.",
    )
