"""Texts that the model writes after an evaluation, from the prompts of the spec."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import jax

from trainingjob_api.decoding import PlacedSample, list_samples
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.evaluation import TextSample
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_trainer.data.chat.conversation_prompt import encode_conversation
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.monitoring.evaluation import EntryReporter, SignalSource
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.sampling.generate import Prompt, Randomness, generate
from trainingjob_trainer.sampling.token_programs import TokenPrograms
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.trackers.metrics_file import TextOfPrompt


@dataclass(frozen=True)
class _Row:
    """A row of the batch of all samples."""

    placed: PlacedSample
    text: str
    prompt: Prompt

    def is_due(self, step: int, last_step: int) -> bool:
        """Return whether the sample follows a step: with its evaluation, or with some of its evaluations."""
        every = self.placed.evaluation.every_steps
        is_evaluated = step % every == 0 and step % (self.placed.sample.every_steps or every) == 0
        return is_evaluated or step == last_step


class TextSampler:
    """Writes the texts of the samples that are due after a step. All processes call it together.

    Raises:
        TrainingError: a prompt has no tokens, or more tokens than fit into a sequence.
    """

    def __init__(
        self,
        spec: TrainingJobSpec,
        steps: StepPrograms,
        programs: TokenPrograms | None,  # None: there are no samples
    ) -> None:
        self._spec = spec
        self._steps = steps
        self._programs = programs
        if programs:
            self._encoder = DocumentEncoder(spec.tokenizer, spec.model.vocab_size)
            self._ends = set() if self._encoder.end is None else {self._encoder.end}
            self._rows = dict(enumerate(self._list_rows(programs.shape.length)))

    def write(
        self, step: int, params: Params, signals: SignalSource, report_entry: EntryReporter
    ) -> list[TextOfPrompt] | None:  # None: it was interrupted
        """Return the texts of the samples that are due after a step.

        A signal from any process interrupts them, on all processes before the same token.
        """
        if self._programs is None:
            return []
        due = {number: row for number, row in self._rows.items() if row.is_due(step, self._spec.training.step_limit)}
        counter = count(1)

        def read_signals() -> jax.Array:
            report_entry(f"token {next(counter)} of the text samples")
            return self._steps.signals(signals())

        texts = generate(
            self._programs,
            params,
            {number: row.prompt for number, row in due.items()},
            Randomness(self._spec.training.seed, step),
            ends=tuple(self._ends),
            signals=read_signals,
        )
        return None if texts is None else [self._describe(row, texts[number]) for number, row in due.items()]

    def _list_rows(self, length: int) -> Iterator[_Row]:
        """Yield the rows of the batch, whose length is given."""
        for placed in list_samples(self._spec):
            sample = placed.sample
            text, ids = self._encode(placed)
            _check_length(placed.path, sample, len(ids), length, self._spec.model.max_positions)
            yield _Row(placed, text, Prompt(ids, sample.max_tokens, sample.temperature))

    def _encode(self, placed: PlacedSample) -> tuple[str, list[int]]:
        """Return the text and the tokens of a prompt, and add the token that ends its answer to the ends."""
        if not placed.sample.messages:
            text = placed.sample.prompt or ""
            return text, self._encoder.encode_prompt(text)
        messages = [message.model_dump() for message in placed.sample.messages]
        prompt = encode_conversation(self._spec.tokenizer, self._encoder, messages, f"{placed.path}.messages")
        self._ends |= set() if prompt.end is None else {prompt.end}
        return prompt.text, prompt.ids

    def _describe(self, row: _Row, ids: list[int]) -> TextOfPrompt:
        return TextOfPrompt(
            evaluation=row.placed.evaluation.name,
            number=row.placed.number,
            prompt=row.text,
            text=self._encoder.decode(ids),
            num_tokens=len(ids),
            temperature=row.prompt.temperature,
        )


def _check_length(path: str, sample: TextSample, num_tokens: int, length: int, max_positions: int | None) -> None:
    """Check that a prompt has tokens, and that a sequence is long enough for the text after it.

    Raises:
        TrainingError: it has none.
    """
    if num_tokens == 0:
        message = "must have a token or more, but the tokenizer makes none of it."
        raise TrainingError(FailureReason.DATA, message, path=f"{path}.prompt", value=sample.prompt)
    available = length - num_tokens
    if sample.max_tokens <= available:
        return
    if length == max_positions or sample.messages:
        reason = f"the prompt has {num_tokens:,} tokens, and {_describe_limit(length, max_positions)}"
        nearest = f" Nearest legal value: {available}." if available > 0 else ""
        raise TrainingError(
            FailureReason.CONFIG,
            f"must be at most {max(available, 0)}: {reason}.{nearest}",
            path=f"{path}.maxTokens",
            value=sample.max_tokens,
        )
    message = f"must have at most one token a byte, but the tokenizer makes {num_tokens:,} of it."
    raise TrainingError(FailureReason.DATA, message, path=f"{path}.prompt", value=sample.prompt)


def _describe_limit(length: int, max_positions: int | None) -> str:
    if length == max_positions:
        return f"spec.model.maxPositions is {max_positions:,}"
    return f"the longest sample has {length:,} tokens by the bytes of the messages"
