"""Names of the images that are built for each platform of JAX."""

from trainingjob_api.images import IMAGE_PLATFORMS, TRAINER_REPOSITORIES, build_command, chart_value
from trainingjob_operator.core.planner.hardware_builtin import BUILTIN


def test_every_platform_has_an_image() -> None:
    used = {"cpu", *(row.platform for row in BUILTIN.accelerators_by_name.values())}

    assert used == IMAGE_PLATFORMS.keys()
    assert set(IMAGE_PLATFORMS.values()) == TRAINER_REPOSITORIES.keys()


def test_the_command_and_the_value_name_the_platform_of_the_image() -> None:
    assert build_command("cuda") == "make images PLATFORM=cuda13"
    assert chart_value("cuda") == "trainer.images.cuda13"
