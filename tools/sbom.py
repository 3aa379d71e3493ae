"""Write the software bill of materials of each image: CycloneDX 1.6 JSON, made from the image's lock.

`python -m tools.sbom FOLDER` writes one file for the operator's image and one for each trainer's. The same locks and
Containerfiles always give the same bytes. Debian packages of the base image are not listed: only its digest names them.
"""

import hashlib
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from pathlib import Path

from cyclonedx.model import Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.markers import Marker
from packaging.utils import canonicalize_name

from tools.images import ROOT, Image, list_images, read_base
from trainingjob_api.images import TRAINER_REPOSITORIES

PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^ ;\\\n]+)(?: ; (?P<marker>[^\\\n]+?))?(?: \\)?$", re.MULTILINE)
ENVIRONMENT = {
    "implementation_name": "cpython",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_system": "Linux",
    "python_full_version": "3.12.0",
    "python_version": "3.12",
    "sys_platform": "linux",
}
"""Environment of the images, by which packages of other systems are left out."""


def lock_path(image: Image, root: Path = ROOT) -> Path:
    """Return the lock that the Containerfile of an image installs."""
    suffix = f"-{image.platform}" if image.platform not in ("", "cpu") else ""
    return root / image.folder / f"requirements{suffix}.lock"


def all_images() -> list[Image]:
    """Return the operator's image and the trainer's for each platform."""
    return list(dict.fromkeys(image for platform in TRAINER_REPOSITORIES for image in list_images(platform)))


def read_packages(lock: str) -> Iterator[tuple[str, str]]:
    """Yield name and version of each package that a lock installs into an image."""
    for pin in PIN.finditer(lock):
        if not pin["marker"] or Marker(pin["marker"]).evaluate(ENVIRONMENT):
            yield canonicalize_name(pin["name"]), pin["version"]


def make_bom(image: Image, root: Path = ROOT) -> Bom:
    """Return the bill of materials of an image: its base image, its Python packages and the project itself."""
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    lock, base = lock_path(image, root).read_text(), read_base(image, root)
    name, _, digest = base.partition("@")
    repository, _, tag = name.rpartition(":")
    bom = Bom()
    bom.metadata.timestamp = None  # same input, same bytes
    bom.metadata.component = Component(
        type=ComponentType.CONTAINER, name=image.repository, version=project["version"], bom_ref="image"
    )
    bom.metadata.properties.add(Property(name="trainingjob:lock-sha256", value=_sha256(lock)))
    bom.components.add(
        Component(type=ComponentType.CONTAINER, name=repository, version=digest or tag, bom_ref="base-image")
    )
    project_component = Component(
        type=ComponentType.APPLICATION,
        name=project["name"],
        version=project["version"],
        bom_ref="project",
        licenses=[DisjunctiveLicense(id=project["license"])],
    )
    bom.components.add(project_component)
    libraries = [
        Component(
            type=ComponentType.LIBRARY,
            name=package,
            version=version,
            bom_ref=f"{package}=={version}",
            purl=PackageURL("pypi", name=package, version=version),
        )
        for package, version in read_packages(lock)
    ]
    bom.components.update(libraries)
    bom.register_dependency(project_component, libraries)
    bom.register_dependency(bom.metadata.component, list(bom.components))
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, f"{image.repository} {base} {lock}")
    return bom


def render(image: Image, root: Path = ROOT) -> str:
    """Return the bill of materials of an image as CycloneDX JSON."""
    return JsonV1Dot6(make_bom(image, root)).output_as_string(indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write a file for each image into a folder; return the exit code."""
    if len(arguments) != 1:
        print(f"usage: {sys.argv[0]} FOLDER", file=sys.stderr)
        return 2
    folder = Path(arguments[0])
    folder.mkdir(parents=True, exist_ok=True)
    for image in all_images():
        path = folder / f"{image.repository}.cdx.json"
        path.write_text(render(image))
        print(f"wrote {path}")
    return 0


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
