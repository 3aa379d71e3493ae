"""Loss weights by the characters of tokens."""

import numpy as np
import pytest

from trainingjob_trainer.data.chat.answer_weights import byte_offsets, weigh_tokens

CASES: dict[str, tuple[list[tuple[int, int]], list[tuple[int, int]], list[int]]] = {
    "whole tokens": ([(0, 2), (2, 4), (4, 6)], [(2, 4)], [0, 1, 0]),
    "several answers": ([(0, 1), (1, 2), (2, 3), (3, 4)], [(0, 1), (3, 4)], [1, 0, 0, 1]),
    "a token across the begin": ([(0, 3), (3, 4)], [(2, 4)], [1, 1]),
    "a token across the end": ([(0, 2), (2, 5)], [(0, 3)], [1, 1]),
    "tokens that share a character": ([(0, 1), (1, 2), (1, 2), (2, 3)], [(1, 2)], [0, 1, 1, 0]),
    "trimmed blanks at the end": ([(0, 1), (3, 3), (3, 4)], [(0, 3)], [1, 1, 0]),
    "trimmed blanks before the begin": ([(0, 1), (3, 3), (3, 4)], [(3, 4)], [0, 0, 1]),
    "an empty token at the end of an answer": ([(0, 1), (1, 1), (1, 2)], [(0, 1)], [1, 1, 0]),
    "an empty token at the begin": ([(0, 0), (0, 1)], [(1, 2)], [0, 0]),
    "no answer": ([(0, 1)], [], [0]),
    "an empty answer": ([(0, 1), (1, 2)], [(1, 1)], [0, 0]),
    "no tokens": ([], [(0, 1)], []),
}


@pytest.mark.parametrize(("offsets", "answers", "want"), CASES.values(), ids=CASES.keys())
def test_tokens_of_answers_have_weight(
    offsets: list[tuple[int, int]], answers: list[tuple[int, int]], want: list[int]
) -> None:
    assert weigh_tokens(np.array(offsets, np.int64).reshape(-1, 2), answers).tolist() == want


def test_bytes_of_a_character_share_its_place() -> None:
    text = "aé€😀z"

    offsets = byte_offsets(text)

    assert len(offsets) == len(text.encode())
    assert offsets[:, 0].tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4]
    assert (offsets[:, 1] - offsets[:, 0] == 1).all()
