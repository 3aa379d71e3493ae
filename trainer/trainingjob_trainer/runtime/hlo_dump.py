"""Compiled programs as HLO below the checkpoint folder: `profiles/hlo/slices-2/train.hlo.txt`.

Each world replaces the files of its number of slices, so that their number is bounded. A dump that fails costs the
dump, and no program.
"""

import logging
from typing import Any

from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.spec.profiling import HloFormat
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FOLDER = "profiles/hlo"
"""The folder of all dumps, below the root of the checkpoint store."""
MAX_BYTES = 256 << 20
"""Bytes of the largest file."""


class HloDump:
    """Writes compiled programs in a format. `folder` is that of the world's size."""

    def __init__(self, store: Store, folder: str, form: HloFormat) -> None:
        self._store = store
        self._folder = folder
        self._form = form

    def write(self, name: str, program: Any) -> None:
        """Write a compiled or loaded program, after all optimizations."""
        try:
            if self._form in ("text", "both"):
                self._write_file(f"{name}.hlo.txt", program.as_text().encode())
            if self._form in ("proto", "both"):
                self._write_file(f"{name}.hlo.pb", _serialize(program))
        except Exception as error:  # noqa: BLE001  # a platform without HLO, or a full or failing store
            LOG.warning("HLO not written name=%s error=%s", name, error)

    def _write_file(self, name: str, content: bytes) -> None:
        """Write a file.

        Raises:
            ValueError: it is too large.
            OSError: storage refuses.
        """
        if len(content) > MAX_BYTES:
            raise ValueError(f"{name} has {len(content):,} bytes, and at most {MAX_BYTES:,} are written")
        self._store.write(f"{self._folder}/{name}", [content])
        LOG.info("wrote HLO file=%s bytes=%d", self._store.locate(f"{self._folder}/{name}"), len(content))


def open_hlo_dump(start: StartWorld) -> HloDump | None:  # None: this process dumps no program
    """Return the dump of `profiling.hlo`, which process 0 writes: all processes have the same programs."""
    profiling = start.config.spec.profiling
    if profiling is None or profiling.hlo is None or start.process != 0:
        return None
    store = open_store(start.config.spec.checkpoint.uri)
    return HloDump(store, f"{FOLDER}/slices-{len(start.world.slices)}", profiling.hlo)


def _serialize(program: Any) -> bytes:
    """Return a program as a message `HloModuleProto`.

    Raises:
        ValueError: it has several modules.
    """
    (module,) = program.runtime_executable().hlo_modules()
    content: bytes = module.as_serialized_hlo_module_proto()
    return content
