"""Build and push the project's images: the operator's, and the trainer's for one platform.

`python -m tools.images cuda13` prints each command and runs it. The builder is the first of buildah, docker and kaniko
that is installed. Each image gets OCI labels of its version, commit and base image.
"""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from trainingjob_api.images import TRAINER_REPOSITORIES

ROOT = Path(__file__).parent.parent
BUILDERS = {"buildah": "buildah", "docker": "docker", "kaniko": "/kaniko/executor"}
"""Builders in the order in which they are tried, with their program. Kaniko runs only inside the image of kaniko."""
OPERATOR = "trainingjob-operator"
DEFAULT_REGISTRY = "localhost"
BASE_ARGUMENT = re.compile(r"^ARG PYTHON_IMAGE=(\S+)$", re.MULTILINE)


class ImageError(Exception):
    """The images cannot be built as requested; the message names the argument to change."""


@dataclass(frozen=True)
class Image:
    """An image to build: its repository, its folder with a Containerfile, and the platform of a trainer."""

    repository: str
    folder: str
    platform: str = ""


@dataclass(frozen=True)
class Target:
    """Registry and tag of images, and the values of their labels. `base` replaces the Containerfiles' base image."""

    registry: str
    tag: str
    revision: str
    base: str = ""
    is_pushed: bool = False

    def reference(self, image: Image) -> str:
        """Return the reference of an image: `registry/repository:tag`."""
        return f"{self.registry}/{image.repository}:{self.tag}"


def list_images(platform: str) -> list[Image]:
    """Return the operator's image and the trainer's for a platform.

    Raises:
        ImageError: the platform has no image.
    """
    if platform not in TRAINER_REPOSITORIES:
        raise ImageError(f"PLATFORM={platform}: must be one of {', '.join(TRAINER_REPOSITORIES)}.")
    return [Image(OPERATOR, "operator"), Image(TRAINER_REPOSITORIES[platform], "trainer", platform)]


def find_builder(requested: str, which: Callable[[str], str | None] = shutil.which) -> str:
    """Return the builder to use: `requested` if not empty, otherwise the first that is installed.

    Raises:
        ImageError: none is installed, or the requested one is unknown or not installed.
    """
    if requested and requested not in BUILDERS:
        raise ImageError(f"BUILDER={requested}: must be one of {', '.join(BUILDERS)}.")
    for builder in [requested] if requested else BUILDERS:
        if which(BUILDERS[builder]):
            return builder
    if requested:
        raise ImageError(
            f"BUILDER={requested}: {BUILDERS[requested]} is not installed. Install it or leave BUILDER out."
        )
    raise ImageError("no image builder was found. Install buildah or docker, or run this in the image of kaniko.")


def read_base(image: Image, root: Path = ROOT) -> str:
    """Return the base image that a Containerfile names."""
    match = BASE_ARGUMENT.search((root / image.folder / "Containerfile").read_text())
    if match is None:
        raise ImageError(f"{image.folder}/Containerfile: must have a line ARG PYTHON_IMAGE=...")
    return match[1]


def image_commands(builder: str, image: Image, target: Target) -> Iterator[list[str]]:
    """Yield the commands that build an image from the repository root, and push it if `is_pushed` is set.

    Raises:
        ImageError: an image to push has a base image without a digest.
    """
    base = target.base or read_base(image)
    if target.is_pushed and "@sha256:" not in base:
        raise ImageError(
            f"PUSH=1: the base image {base} of {image.folder}/Containerfile has no digest, so that a later build may "
            "differ. Run `make pin-base` first, or set BASE=NAME@sha256:DIGEST."
        )
    reference = target.reference(image)
    arguments = [f"PYTHON_IMAGE={base}", *([f"PLATFORM={image.platform}"] if image.platform else [])]
    name, _, digest = base.partition("@")
    labels = [f"version={target.tag}", f"revision={target.revision}", f"base.name={name}"]
    options = [
        *(f"--build-arg={argument}" for argument in arguments),
        *(
            f"--label=org.opencontainers.image.{label}"
            for label in [*labels, *([f"base.digest={digest}"] * bool(digest))]
        ),
    ]
    containerfile = f"{image.folder}/Containerfile"
    if builder == "kaniko":
        destination = [f"--destination={reference}", *([] if target.is_pushed else ["--no-push"])]
        # By default, Kaniko builds all stages: each downloads the libraries of one platform.
        yield [BUILDERS[builder], "--context=dir://.", f"--dockerfile={containerfile}", "--skip-unused-stages=true",
               "--cleanup", *options, *destination]  # fmt: skip
        return
    layers = ["--layers"] if builder == "buildah" else []
    yield [builder, "build", *layers, *options, f"--file={containerfile}", f"--tag={reference}", "."]
    if target.is_pushed:
        yield [builder, "push", reference]


def main(arguments: list[str]) -> int:
    """Build the images; return the exit code: 1 if a command failed, 2 if an argument is invalid."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("platform", help=", ".join(TRAINER_REPOSITORIES))
    parser.add_argument("--builder", default="", help=", ".join(BUILDERS))
    parser.add_argument("--registry", default=DEFAULT_REGISTRY)
    parser.add_argument("--tag", default=tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
    parser.add_argument("--base", default="", help="base image in place of the one that the Containerfiles name")
    parser.add_argument("--push", action="store_true")
    parser.add_argument("--dry-run", action="store_true", help="print the commands only")
    options = parser.parse_args(arguments)
    try:
        target = Target(options.registry.rstrip("/"), options.tag, _read_revision(), options.base, options.push)
        is_chosen = options.dry_run and options.builder in BUILDERS  # its commands may run elsewhere
        builder = options.builder if is_chosen else find_builder(options.builder)
        commands = [
            command for image in list_images(options.platform) for command in image_commands(builder, image, target)
        ]
    except ImageError as error:
        print(error, file=sys.stderr)
        return 2
    for command in commands:
        print(shlex.join(command), flush=True)
        if not options.dry_run and subprocess.run(command, cwd=ROOT, check=False).returncode:
            print(f"{command[0]} failed: see its output above.", file=sys.stderr)
            return 1
    return 0


def _read_revision() -> str:
    """Return the commit, with `-dirty` if files differ from it; empty outside a checkout."""
    completed = subprocess.run(
        ["git", "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"], cwd=ROOT, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    return completed.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
