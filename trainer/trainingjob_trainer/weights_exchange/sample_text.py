"""Text from the weights of a folder, on the devices of this machine, a token at a time."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainingjob_api.base import AXES
from trainingjob_api.decoding import DecodingShape
from trainingjob_api.weights_exchange import DEFAULT_MAX_TOKENS, ExchangeAnswer, SampleReport, SampleRequest
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.huggingface.safetensors import WeightsError
from trainingjob_trainer.sampling.generate import Prompt, Randomness, generate
from trainingjob_trainer.sampling.token_programs import TextGenerator
from trainingjob_trainer.weights_exchange.text_source import TextSource, open_text_source

REPLACEMENT = "\ufffd"
"""What a decoder shows in place of the first bytes of a character."""


def sample_text(request: SampleRequest, send: Callable[[ExchangeAnswer], None]) -> None:
    """Continue a prompt, and send each part of the text as soon as it exists.

    Raises:
        ConfigError: no model section expresses the model.
        WeightsError: the folder or the prompt cannot be used.
        TrainingError: no step is intact, or the tokenizer cannot be used.
        ValueError: `model.json` cannot be read.
        OSError: a file cannot be read.
    """
    source = open_text_source(request)
    ids = source.encoder.encode_prompt(request.prompt, special_tokens=source.has_special_tokens)
    prompt = Prompt(ids, _choose_max_tokens(request, len(ids), source.context), request.temperature)
    shape = DecodingShape(1, len(ids) + prompt.max_tokens)
    programs = TextGenerator(source.model, source.shapes, source.mesh, shape).compile(_Compiler())
    stream = _Stream(source.encoder, send)
    texts = generate(
        programs,
        source.load(),
        {0: prompt},
        Randomness(request.seed, source.step or 0),
        ends=source.ends,
        signals=lambda: _no_signals(source),
        on_token=lambda _, token: stream.add(token),
    )
    assert texts is not None  # noqa: S101  # no signal interrupts them
    stream.finish()
    num_tokens = len(texts[0])
    is_ended = num_tokens < prompt.max_tokens
    send(ExchangeAnswer(sampled=SampleReport(step=source.step, num_tokens=num_tokens, is_ended=is_ended)))


class _Compiler:
    """Compiles programs in place of a job's compile cache."""

    def compile_or_load(self, name: str, function: Any, arguments: tuple[Any, ...], result: Any, **options: Any) -> Any:
        """Return a compiled program."""
        del name, result
        return jax.jit(function, **options).lower(*arguments).compile()


class _Stream:
    """Sends the text of tokens. A character whose bytes are in several tokens is sent whole."""

    def __init__(self, encoder: DocumentEncoder, send: Callable[[ExchangeAnswer], None]) -> None:
        self._encoder = encoder
        self._send = send
        self._ids: list[int] = []
        self._sent = ""

    def add(self, token: int) -> None:
        """Send what a token adds to the text."""
        self._ids.append(token)
        text = self._encoder.decode(self._ids)
        if not text.endswith(REPLACEMENT):
            self._send_up_to(text)

    def finish(self) -> None:
        """Send the rest."""
        self._send_up_to(self._encoder.decode(self._ids))

    def _send_up_to(self, text: str) -> None:
        if len(text) > len(self._sent):
            self._send(ExchangeAnswer(text=text[len(self._sent) :]))
            self._sent = text


def _choose_max_tokens(request: SampleRequest, num_tokens: int, context: int | None) -> int:
    """Return the maximum number of tokens.

    Raises:
        WeightsError: the prompt has no tokens, or it and the text are longer than the model's sequences.
    """
    if num_tokens == 0:
        raise WeightsError("--prompt must have a token or more, but the tokenizer makes none of it")
    if context is None:
        return request.max_tokens or DEFAULT_MAX_TOKENS
    available = context - num_tokens
    if available < 1:
        raise WeightsError(
            f"--prompt has {num_tokens:,} tokens, and must have fewer than the {context:,} of the model's sequences"
        )
    if request.max_tokens and request.max_tokens > available:
        raise WeightsError(
            f"--max-tokens: {request.max_tokens:,} must be at most {available:,}. The prompt has {num_tokens:,} "
            f"tokens, and the model's sequences have {context:,}"
        )
    return request.max_tokens or min(DEFAULT_MAX_TOKENS, available)


def _no_signals(source: TextSource) -> jax.Array:
    sharding = NamedSharding(source.mesh, PartitionSpec(AXES))
    signals: jax.Array = jax.device_put(np.zeros(source.mesh.size, np.int32), sharding)
    return signals
