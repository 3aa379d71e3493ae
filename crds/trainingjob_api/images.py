"""Trainer images: `make images PLATFORM=tpu` builds one for each platform of JAX.

The Makefile, the chart's `trainer.images` and the messages of the operator and the trainer share these names.
"""

from collections.abc import Mapping

IMAGE_PLATFORMS: Mapping[str, str] = {"cpu": "cpu", "tpu": "tpu", "cuda": "cuda13"}
"""Platform of the image for each platform of JAX: `PLATFORM` of `make images`, and the key in `trainer.images`."""
TRAINER_REPOSITORIES: Mapping[str, str] = {
    "cpu": "trainingjob-trainer",
    "tpu": "trainingjob-trainer-tpu",
    "cuda13": "trainingjob-trainer-cuda13",
}
"""Repository of the image for each platform of images, without a registry."""


def build_command(platform: str) -> str:
    """Return the command that builds the images for a platform of JAX, in a checkout of this project."""
    return f"make images PLATFORM={IMAGE_PLATFORMS[platform]}"


def chart_value(platform: str) -> str:
    """Return the chart's value that names the trainer image of jobs on a platform of JAX."""
    return f"trainer.images.{IMAGE_PLATFORMS[platform]}"
