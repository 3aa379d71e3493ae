"""Joining a world: what is said when the devices are others, and what libtpu is told about slices."""

import pytest

from tests.trainer.tiny import make_layout, make_world
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.failures import TrainingError
from trainingjob_trainer.world import connect, multislice_environment


def test_other_devices_than_the_layout_has_are_a_config_failure() -> None:
    words = "expected 2 devices on this host and 2 in the world .* found 8 and 8"
    with pytest.raises(TrainingError, match=words) as caught:
        connect(make_world(1, 1), 0, make_layout(), "cpu")

    assert (caught.value.reason, caught.value.fatal, caught.value.path) == (
        FailureReason.CONFIG,
        True,
        "spec.slices.topology",
    )


def test_slices_are_numbered_without_gaps() -> None:
    world = make_world(1, 3)
    without_one = world.model_copy(update={"members": (world.members[0], world.members[2])})

    seen = multislice_environment(without_one, 2)

    assert seen == {
        "MEGASCALE_COORDINATOR_ADDRESS": "127.0.0.1",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
