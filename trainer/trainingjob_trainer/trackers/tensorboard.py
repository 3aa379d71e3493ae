"""TensorBoard event file, written by a background thread that survives write errors.

The writer thread of tensorboardX ends at the first failed write, and later calls then block forever. A full disk would
stop training because of its plots.
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

from trainingjob_agent.shared_files import append_record, open_appending

LOG = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0
"""Seconds for which the end of a trainer waits for its plots."""


class TensorBoardWriter:
    """Writes plots below a folder. `first_step` is its first step: TensorBoard hides older points from that step on.

    Raises:
        UntrustedFileError: something other than a file has the name of its file.
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.{os.getpid()}"
        self._file = open_appending(folder / name)
        self._is_failing = False
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()  # None: end of the queue
        self._events.put(Event(wall_time=time.time(), step=first_step, file_version="brain.Event:2"))
        self._events.put(Event(step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self._thread = threading.Thread(target=self._write_all, name="board", daemon=True)
        self._thread.start()

    def add(self, name: str, value: float, step: int) -> None:
        """Queue one point of a plot for writing."""
        self._events.put(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))

    def close(self) -> None:
        """Write all queued points and close the file, unless the storage hangs."""
        self._events.put(None)
        self._thread.join(CLOSE_SECONDS)
        if self._thread.is_alive():  # it may still write: a closed number may soon be that of another file
            LOG.warning("last TensorBoard points not written waited=%.0f", CLOSE_SECONDS)
        else:
            self._file.close()

    def _write_all(self) -> None:
        while (event := self._events.get()) is not None:
            try:
                append_record(self._file, frame_record(event.SerializeToString()))
                self._is_failing = False
            except OSError as error:
                if not self._is_failing:
                    LOG.warning("TensorBoard write failed error=%s", error)
                self._is_failing = True


def frame_record(data: bytes) -> bytes:
    """Return a record in TensorBoard's format: its length and its data, each followed by a checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
