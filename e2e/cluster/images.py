"""Container images of the project and of the cluster itself, built without a container engine.

Each image is an archive in the cache, named by the hash of its inputs, so that an unchanged image costs only the hash.
`buildah` keeps the layers between builds: a source change rebuilds only the last layer.
"""

import ast
import hashlib
import os
import shutil
import sys
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.binaries import binaries_dir
from e2e.cluster.node_config import PAUSE_IMAGE
from e2e.cluster.paths import CHECKOUT, RUN, cache_dir
from e2e.cluster.progress import print_progress
from e2e.cluster.run_program import run

OPERATOR_IMAGE = "localhost/trainingjob-operator:dev"
TRAINER_IMAGE = "localhost/trainingjob-trainer:dev"
JOBSET_IMAGE = "localhost/trainingjob-jobset:dev"
COREDNS_IMAGE = "localhost/trainingjob-coredns:dev"
MAXTEXT_IMAGE = "localhost/trainingjob-maxtext:dev"

CONTAINERFILES = Path(__file__).parent / "images"
SOURCES = (
    *("pyproject.toml", "build.lock", "README.md", "LICENSE", ".containerignore"),
    *(
        "crds/trainingjob_api",
        "operator/trainingjob_operator",
        "trainer/trainingjob_agent",
        "trainer/trainingjob_program",
        "trainer/trainingjob_trainer",
    ),
)
KEPT_ARCHIVES = 2
PIP_DOWNLOAD_OPTIONS = frozenset(
    ("cert", "default-timeout", "extra-index-url", "find-links", "index-url", "proxy", "timeout", "trusted-host")
)

# The newest Debian: bookworm's Python 3.11 is too old for JAX.
BASE_SUITE = "trixie"
BASE_PACKAGES = "python3,python3-venv,ca-certificates"
BASE_IMAGE = f"localhost/trainingjob-python:{BASE_SUITE}"
_BASE_LOCK = threading.Lock()
"""Held while a thread checks for the base image or builds it."""


@dataclass(frozen=True)
class Image:
    """A built image: its name in the cluster, the hash of its inputs, and its archive."""

    name: str
    key: str
    archive: Path


@dataclass(frozen=True)
class Recipe:
    """Inputs of an image: a Containerfile, its build context, and the relevant paths in the context."""

    name: str
    containerfile: Path
    context: Path
    inputs: tuple[str, ...]
    has_base: bool = False

    def key(self) -> str:
        """Return the hash of all inputs of the image."""
        digest = hashlib.sha256(self.containerfile.read_bytes())
        if self.has_base:
            digest.update(f"{BASE_SUITE} {BASE_PACKAGES}".encode())
        for path in self.inputs:
            for file in _files(self.context / path):
                digest.update(f"{file.relative_to(self.context)} {file.stat().st_size}\n".encode())
                digest.update(file.read_bytes())
        return digest.hexdigest()[:12]


def system_recipes() -> list[Recipe]:
    """Return the images that every local cluster runs."""
    busybox = Path(shutil.which("busybox") or "/bin/busybox")
    return [
        Recipe(PAUSE_IMAGE, CONTAINERFILES / "pause.Containerfile", busybox.parent, (busybox.name,)),
        Recipe(JOBSET_IMAGE, CONTAINERFILES / "jobset.Containerfile", binaries_dir(), ("jobset",)),
        Recipe(COREDNS_IMAGE, CONTAINERFILES / "coredns.Containerfile", binaries_dir(), ("coredns",)),
    ]


def project_recipes() -> list[Recipe]:
    """Return the project's own images."""
    return [
        Recipe(
            image,
            CHECKOUT / folder / "Containerfile",
            CHECKOUT,
            (*SOURCES, f"{folder}/requirements.lock"),
            has_base=True,
        )
        for image, folder in ((OPERATOR_IMAGE, "operator"), (TRAINER_IMAGE, "trainer"))
    ]


def maxtext_recipe() -> Recipe:
    """Return the image of a user with MaxText, which one journey needs."""
    lock = "e2e/maxtext.lock"
    return Recipe(MAXTEXT_IMAGE, CONTAINERFILES / "maxtext.Containerfile", CHECKOUT, (*SOURCES, lock), has_base=True)


def find_operator_key() -> str:
    """Return the hash of the operator image's inputs in this checkout; the image's tag never changes."""
    return next(recipe.key() for recipe in project_recipes() if recipe.name == OPERATOR_IMAGE)


def build(recipes: Iterable[Recipe]) -> list[Image]:
    """Build the images with changed inputs, several at once, and return all images."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # a build that installs packages keeps one core busy
        return list(pool.map(_build, recipes))


def _build(recipe: Recipe) -> Image:
    key = recipe.key()
    stem = recipe.name.partition("/")[2].partition(":")[0]
    archive = cache_dir() / "images" / f"{stem}-{key}.tar"
    if not archive.exists():
        print_progress(f"building {recipe.name}")
        archive.parent.mkdir(parents=True, exist_ok=True)
        with _BASE_LOCK:
            # buildah knows a stage by its name only if the argument in the name has a value from outside.
            base = [f"--build-arg=PYTHON_IMAGE={_ensure_base()}", "--build-arg=PLATFORM=cpu"] if recipe.has_base else []
        _buildah("build", "--layers", *base, *_build_only_mounts(), f"--tag={recipe.name}",
                 f"--file={recipe.containerfile}", str(recipe.context))  # fmt: skip
        scratch = archive.with_suffix(".new")
        scratch.unlink(missing_ok=True)
        # docker-archive: its layers are not compressed, which saves seconds of gzip when writing and reading.
        _buildah("push", recipe.name, f"docker-archive:{scratch}:{recipe.name}")
        scratch.rename(archive)
        _remove_old(stem, archive.parent)
    return Image(recipe.name, key, archive)


def _ensure_base() -> str:
    """Return the name of a Python base image built from Debian packages, which needs no registry."""
    base = cache_dir() / "images" / f"python-{BASE_SUITE}.tar"
    if BASE_IMAGE.partition(":")[0] in _buildah("images", "--format={{.Name}}"):
        return BASE_IMAGE
    if not base.exists():
        print_progress("building the Python base image")
        scratch = base.with_suffix(".new")
        run(
            [
                "mmdebstrap",
                "--quiet",
                "--variant=minbase",
                f"--include={BASE_PACKAGES}",
                "--format=tar",
                BASE_SUITE,
                scratch,
            ]
        )
        scratch.rename(base)
    container = _buildah("from", "scratch").strip()
    try:
        _buildah("add", container, str(base), "/")
        _buildah("commit", container, BASE_IMAGE)
    finally:
        _buildah("rm", container)
    return BASE_IMAGE


def _build_only_mounts() -> list[str]:
    """Return the mounts that a build takes from the host but not into the image: certificates and pip settings."""
    settings = RUN / "pip.conf"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(pip_settings(run([sys.executable, "-m", "pip", "config", "list"])))
    folders = [Path("/etc/ssl/certs"), *map(Path, os.environ.get("PIP_FIND_LINKS", "").split())]
    mounts = [f"--volume={folder}:{folder}:ro" for folder in folders if folder.is_dir()]
    return [f"--volume={settings}:/etc/pip.conf:ro", *mounts]


def pip_settings(listing: str) -> str:
    """Return the download settings in `pip config list` as a pip configuration file."""
    chosen = {}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        option = name.rpartition(".")[2]
        if option in PIP_DOWNLOAD_OPTIONS:
            chosen[option] = ast.literal_eval(value)
    lines = (f"{option} = {value}".replace("\n", "\n    ") for option, value in chosen.items())
    return "\n".join(["[global]", *lines]) + "\n"


def _buildah(*arguments: str) -> str:
    # Separate storage: the user's own buildah images stay untouched, and `rm -r` of the cache removes everything.
    storage = [f"--root={cache_dir() / 'buildah'}", f"--runroot={RUN / 'buildah'}", "--storage-driver=overlay"]
    return run(["buildah", *storage, *arguments], env={**os.environ, "BUILDAH_ISOLATION": "chroot"})


def _remove_old(stem: str, folder: Path) -> None:
    archives = sorted(folder.glob(f"{stem}-*.tar"), key=lambda path: path.stat().st_mtime, reverse=True)
    for archive in archives[KEPT_ARCHIVES:]:
        archive.unlink()


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and "__pycache__" not in file.parts)
