"""Names below a checkpoint folder: the trainer writes them, and drills of the agent look for them.

    lineage-<n>/<step>.g<generation>.s<save>.<job>/                the files of one save of a step
    lineage-<n>/<step>.g<generation>.s<save>.<job>/integrity.json  written last: the step is committed
    lineage-<n>/<step>.g<generation>.s<save>.<job>.quarantined     the step does not count any more
    frozen/<step>.g<generation>.s<save>.<job>/                     frozen tensors, which the manifests of steps name

No two saves have the same name: a world is the only one of its job with its generation, it counts its saves, and
`<job>` is a hash of the job's UID. Older trainers named the folder `<step>` alone, and renamed it into place.
"""

import hashlib
import re
from typing import NamedTuple

from trainingjob_agent.shared_files import parse_number

LINEAGE_PREFIX = "lineage-"
FROZEN_FOLDER = "frozen"
"""The folder of the frozen tensors that steps share."""
MANIFEST_FILE = "integrity.json"
"""The file that commits a step: a folder without it is not a saved step."""
WRITER_FILE = "writer.json"
"""The first file of a step: it claims the folder for one save of one world."""
QUARANTINE_SUFFIX = ".quarantined"
"""Suffix of the file beside a step that excludes the step."""
STEP_NAME = re.compile(r"(?P<step>[0-9]+)\.g(?P<generation>[0-9]+)\.s(?P<save>[0-9]+)\.(?P<job>[0-9a-f]{8})", re.ASCII)


class Writer(NamedTuple):
    """The world that writes a step, and the number of the save in that world. `job` is the hash of the job's UID."""

    job: str
    generation: int
    save: int


class StepName(NamedTuple):
    """The name of a step's folder within its lineage. `writer` None: an older trainer wrote it."""

    step: int
    writer: Writer | None = None

    @property
    def generation(self) -> int:
        """Return the generation of the world that wrote it; 0: unknown."""
        return self.writer.generation if self.writer else 0

    @property
    def job(self) -> str:
        """Return the hash of the job whose world wrote it; empty: unknown."""
        return self.writer.job if self.writer else ""

    def __str__(self) -> str:
        if self.writer is None:
            return str(self.step)
        return f"{self.step}.g{self.writer.generation}.s{self.writer.save}.{self.writer.job}"


def hash_job(uid: str) -> str:
    """Return the short hash of a job's UID in the names of its steps."""
    return hashlib.sha256(uid.encode()).hexdigest()[:8]


def parse_step_name(name: str) -> StepName | None:  # None: not a step
    """Return the parts of the name of a step's folder."""
    if (step := parse_number(name)) is not None:
        return StepName(step)
    if not (match := STEP_NAME.fullmatch(name)):
        return None
    step, generation, save = (parse_number(match[key]) for key in ("step", "generation", "save"))
    if step is None or generation is None or save is None:
        return None
    return StepName(step, Writer(match["job"], generation, save))


def lineage_folder(number: int) -> str:
    """Return the name of the folder of a lineage's steps."""
    return f"{LINEAGE_PREFIX}{number}"


def parse_lineage(name: str) -> int | None:  # None: not a lineage
    """Return the number of a lineage from the name of its folder."""
    return parse_number(name.removeprefix(LINEAGE_PREFIX)) if name.startswith(LINEAGE_PREFIX) else None
