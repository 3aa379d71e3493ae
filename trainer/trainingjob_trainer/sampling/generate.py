"""The loop that generates text: prompts are read, then each row grows by one token at a time.

All rows are at the same position. A row whose prompt is longer than that of another reads it while the other already
generates.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import jax
import numpy as np

from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.decoding_cache import Cache
from trainingjob_trainer.sampling.token_programs import Draw, TokenPrograms


def _ignore(row: int, token: int) -> None:
    """Do nothing with a token."""


class Prompt(NamedTuple):
    """Token ids that a row begins with, and how it goes on."""

    ids: Sequence[int]
    max_tokens: int
    temperature: float | None = None
    """None: the most likely token is taken."""


class Randomness(NamedTuple):
    """What decides the random numbers beside row and position."""

    seed: int
    step: int


def generate(
    programs: TokenPrograms,
    params: Params,
    prompts: Mapping[int, Prompt],
    randomness: Randomness,
    *,
    ends: Collection[int],
    signals: Callable[[], jax.Array],
    on_token: Callable[[int, int], None] = _ignore,
) -> dict[int, list[int]] | None:  # None: it was interrupted
    """Return the generated ids by the row of their prompt. All processes call this together.

    A text ends with one of `ends`, which is not returned, or at its maximum length. A signal from any process
    interrupts all texts, on all processes before the same token.

    Args:
        programs: compiled programs for at least as many rows as there are prompts.
        params: the parameters.
        prompts: prompts by row, each with a token or more.
        randomness: seed and step of the random numbers.
        ends: tokens that end a text.
        signals: returns the control signals of this process.
        on_token: called with row and id of each token that is returned.
    """
    if not prompts:
        return {}
    texts = _Texts(programs, prompts, ends)
    draw = _make_draw(programs, prompts, randomness)
    cache, position = _read_prompts(programs, params, prompts)
    while texts.unfinished:
        tokens = programs.replicate(texts.tokens_at(position))
        cache, chosen, combined_signals = programs.advance(
            params, cache, tokens, programs.replicate(_int(position)), draw, signals()
        )
        if int(combined_signals):
            return None
        position += 1
        for row, token in texts.add(position, np.asarray(chosen)):
            on_token(row, token)
    return texts.ids


class _Texts:
    """The texts that are generated."""

    def __init__(self, programs: TokenPrograms, prompts: Mapping[int, Prompt], ends: Collection[int]) -> None:
        self._num_rows = programs.shape.rows
        self._prompts = prompts
        self._ends = ends
        self.ids: dict[int, list[int]] = {row: [] for row in prompts}
        self.unfinished = sorted(prompts)

    def tokens_at(self, position: int) -> np.ndarray:
        """Return the token of each row at a position: of the prompt, or after it. Rows without a text get zeros."""
        tokens = np.zeros(self._num_rows, np.int32)
        for row in self.unfinished:
            prompt = self._prompts[row].ids
            tokens[row] = prompt[position] if position < len(prompt) else self.ids[row][position - len(prompt)]
        return tokens

    def add(self, position: int, chosen: np.ndarray) -> Iterator[tuple[int, int]]:
        """Add the tokens that were chosen for a position to the rows whose prompt ends before it, and yield them."""
        for row in list(self.unfinished):
            prompt, token = self._prompts[row], int(chosen[row])
            if position < len(prompt.ids):
                continue
            if token not in self._ends:
                self.ids[row].append(token)
                yield row, token
            if token in self._ends or len(self.ids[row]) == prompt.max_tokens:
                self.unfinished.remove(row)


def _make_draw(programs: TokenPrograms, prompts: Mapping[int, Prompt], randomness: Randomness) -> Draw:
    temperatures = np.zeros(programs.shape.rows, np.float32)
    for row, prompt in prompts.items():
        temperatures[row] = prompt.temperature or 0
    return Draw(*map(programs.replicate, (_int(randomness.seed), _int(randomness.step), temperatures)))


def _read_prompts(programs: TokenPrograms, params: Params, prompts: Mapping[int, Prompt]) -> tuple[Cache, int]:
    """Return a cache with the first tokens of all prompts, and their number: less than the shortest prompt has."""
    cache, position, size = programs.start(), 0, programs.part_tokens
    while position + size < min(len(prompt.ids) for prompt in prompts.values()):
        part = np.zeros((programs.shape.rows, size), np.int32)
        for row, prompt in prompts.items():
            part[row] = prompt.ids[position : position + size]
        cache = programs.read(params, cache, programs.replicate(part), programs.replicate(_int(position)))
        position += size
    return cache, position


def _int(value: int) -> np.ndarray:
    return np.asarray(value, np.int32)
