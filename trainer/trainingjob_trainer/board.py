"""A TensorBoard event file, written in the background by a thread that nothing can end.

The library's own thread ends with the first write that fails, and whoever has something to say then waits for it for
ever: a full disk would stop training for the sake of its plots.
"""

import logging
import os
import queue
import struct
import threading
import time
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar

from trainingjob_trainer.files import append_whole

LOG = logging.getLogger(__name__)


class Board:
    """Writes plots below a folder. `first_step` is the first one that will be told: later ones of before are hidden.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.{os.getpid()}"
        self._file = (folder / name).open("ab", buffering=0)
        self._is_failing = False
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # None: there are no more
        self._events.put(Event(wall_time=time.time(), step=first_step, file_version="brain.Event:2"))
        self._events.put(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self._thread = threading.Thread(target=self._write_all, name="board", daemon=True)
        self._thread.start()

    def add(self, name: str, value: float, step: int) -> None:
        """Write one point of a plot, some time later."""
        self._events.put(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))

    def close(self) -> None:
        """Write what is left."""
        self._events.put(None)
        self._thread.join()
        self._file.close()

    def _write_all(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                append_whole(self._file, frame(event.SerializeToString()))
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:
                    LOG.warning("plots cannot be written, training goes on without error=%s", error)
                self._is_failing = True


def frame(data: bytes) -> bytes:
    """Return a record as TensorBoard reads it: its length, data, and a checksum of each."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
