"""The batch in which a job generates its text samples, and the memory of its cache.

All samples of a job are the rows of one batch, so that one program serves every evaluation. Its length follows from the
spec alone: planner and trainer know it before any text is tokenized.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from trainingjob_api.network.network import Network
from trainingjob_api.network.part import Shard
from trainingjob_api.spec.evaluation import Evaluation, TextSample
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.tokenizer import Tokenizer

PREFIX_TOKENS = 1
"""Tokens that a tokenizer may add in front of a text: the space of SentencePiece, for example."""
TEMPLATE_TOKENS = 256
"""Tokens that a chat template may add to a conversation: a system prompt, and the head of the answer."""
MESSAGE_TOKENS = 32
"""Tokens that a chat template may add to a message, beside its role."""


@dataclass(frozen=True)
class DecodingShape:
    """Size of a batch of generated text."""

    rows: int
    length: int
    """Tokens of a row: the prompt and the generated text."""


class PlacedSample(NamedTuple):
    """A sample, and where the spec has it."""

    evaluation: Evaluation
    evaluation_path: str
    number: int
    """Place in the evaluation's list."""
    sample: TextSample

    @property
    def path(self) -> str:
        """Return the path of the sample's fields."""
        return f"{self.evaluation_path}.samples[{self.number}]"


def list_samples(spec: TrainingJobSpec) -> Iterator[PlacedSample]:
    """Yield all samples of a job, in the order of the batch's rows."""
    for index, evaluation in enumerate(spec.evaluation):
        for number, sample in enumerate(evaluation.samples):
            yield PlacedSample(evaluation, f"spec.evaluation[{index}]", number, sample)


def count_prompt_bytes(prompt: str) -> int:
    """Return the bytes of a prompt, which are its tokens for the byte tokenizer."""
    return len(prompt.encode(errors="replace"))


def max_prompt_tokens(sample: TextSample, tokenizer: Tokenizer) -> int:
    """Return the largest number of tokens of a prompt: one for each byte, and those that are added to them."""
    if sample.messages:
        texts = sum(count_prompt_bytes(message.role + message.content) + MESSAGE_TOKENS for message in sample.messages)
        return texts + TEMPLATE_TOKENS
    return count_prompt_bytes(sample.prompt or "") + PREFIX_TOKENS + tokenizer.may_begin_documents


def find_decoding_shape(spec: TrainingJobSpec) -> DecodingShape | None:  # None: the job generates no text
    """Return the shape of the batch of all samples."""
    samples = [placed_sample.sample for placed_sample in list_samples(spec)]
    lengths = [max_prompt_tokens(sample, spec.tokenizer) + sample.max_tokens for sample in samples]
    if not lengths:
        return None
    return DecodingShape(len(lengths), min(max(lengths), spec.model.max_positions or max(lengths)))


def count_cache_bytes(network: Network, shape: DecodingShape, shard: Shard) -> int:
    """Return the bytes of the cache on one device."""
    rows = shard.split(shape.rows, "batch")
    layers = (
        count * sum(_count_numbers(entry.shape, entry.axes, shard) for entry in block.attention.cache_entries.values())
        for block, count in network.layer_blocks.items()
    )
    return rows * shape.length * shard.compute_bytes * sum(layers) // shard.degrees.get("stage", 1)


def _count_numbers(shape: tuple[int, ...], axes: tuple[str | None, ...], shard: Shard) -> int:
    return math.prod(shard.split(size, axis) if axis else size for size, axis in zip(shape, axes, strict=True))
