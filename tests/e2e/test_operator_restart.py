"""Figures of the operator's restart: what counts as an answer of the next operator, and as a refused report."""

import pytest

from e2e.operator_scale.agent_load import Exchange
from e2e.operator_scale.restart import Answers, count_new_errors, first_answers, last_answers, summarize_answers

KILLED = 10.0
ANSWERS = [
    Exchange(8.0, 1.0, 0),
    Exchange(9.0, 1.0, 1),
    Exchange(9.5, 1.0, 0),
    Exchange(20.0, 1.0, 1),
    Exchange(21.0, 2.0, 1),
    Exchange(23.0, 1.0, 0),
]


def test_the_time_of_a_host_without_an_answer_is_between_its_last_and_its_first() -> None:
    assert last_answers(ANSWERS, KILLED) == {0: 9.5, 1: 9.0}
    assert first_answers(ANSWERS, KILLED) == {1: 20.0, 0: 23.0}


def test_an_answer_with_a_status_is_a_refusal_and_a_lost_connection_is_none() -> None:
    before = {'ExchangeError: 503 {"error": "retry"}': 2, "TimeoutError: ": 1}
    after = {
        'ExchangeError: 503 {"error": "retry"}': 5,
        'ExchangeError: 429 {"error": "busy"}': 1,
        "TimeoutError: ": 2,
        "ExchangeError: the connection ended: closed by the operator": 4,
        "ConnectionRefusedError: [Errno 111]": 3,
    }

    assert count_new_errors(before, after) == (4, 8)


def test_the_delay_of_answers_is_that_of_one_in_a_hundred() -> None:
    answers = [Exchange(20.0 + number, 2.0, number) for number in range(198)]
    late = [Exchange(300.0, 2.5, 198), Exchange(301.0, 3.0, 199)]

    assert summarize_answers([*ANSWERS[:3], *answers, *late], since=20.0) == Answers(200, 2.0, pytest.approx(0.5))
