"""What an agent asks of its trainer: when the loop hears it, and how often."""

from trainingjob_trainer.asks import Asks
from trainingjob_trainer.modelling.signature import Asked


def test_to_leave_is_asked_with_every_step_from_then_on() -> None:
    asks = Asks()
    assert asks.take() is Asked.NOTHING

    asks.leave()

    assert [asks.take(), asks.take()] == [Asked.LEAVE, Asked.LEAVE]


def test_who_is_to_move_and_then_to_leave_asks_for_both() -> None:
    asks = Asks()

    asks.move()
    assert [asks.take(), asks.take()] == [Asked.MOVE, Asked.MOVE]

    asks.leave()
    assert asks.take() is Asked.MOVE | Asked.LEAVE


def test_one_step_alone_is_poisoned() -> None:
    asks = Asks()
    asks.poison()
    asks.leave()

    assert [asks.take(), asks.take()] == [Asked.LEAVE | Asked.POISON, Asked.LEAVE]
