"""Optimizers as data."""

from typing import get_args

from trainingjob_api.optim import SLOTS, Slot
from trainingjob_api.spec.optimizer import Optimizer


def test_every_optimizer_of_a_spec_declares_its_slots() -> None:
    assert set(SLOTS) == set(get_args(Optimizer.model_fields["type"].annotation))


def test_a_slot_takes_the_bytes_of_its_format() -> None:
    assert [Slot("mu", "float32").num_bytes, Slot("mu", "bfloat16").num_bytes] == [4, 2]
