"""TensorBoard event files.

Records are framed here: the writer of tensorboardX ends at the first failed write, and later calls then block forever.
"""

import os
import struct
import time

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import masked_crc32c
from tensorboardX.summary import scalar, text

from trainingjob_trainer.store.port import Store
from trainingjob_trainer.trackers.tracker import FOLDER, Point, Run, quote_markdown


def create_tracker(enabled: bool, run: Run) -> "TensorBoard":  # noqa: FBT001  # the field's value
    """Return the tracker of `metrics.tensorboard`."""
    del enabled
    return TensorBoard(run.store, run.restored + 1)


class TensorBoard:
    """Writes plots to a store. `first_step` is its first step: TensorBoard hides older points from that step on.

    Raises:
        UntrustedFileError: something other than a file has the name of its file.
        OSError: the folder cannot be written.
    """

    def __init__(self, store: Store, first_step: int) -> None:
        name = f"events.out.tfevents.{int(time.time())}.{os.uname().nodename}.{os.getpid()}"
        self._file = store.open_log(f"{FOLDER}/tensorboard/{name}")
        self._first_step = first_step

    def connect(self) -> None:
        """Write the head of the file."""
        self._append(Event(wall_time=time.time(), step=self._first_step, file_version="brain.Event:2"))
        self._append(Event(step=self._first_step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, point: Point) -> None:
        """Write one plot point for each value, and each text."""
        plots = [scalar(f"{point.group}/{name}", value) for name, value in point.values.items()]
        texts = [text(f"{point.group}/{name}", quote_markdown(value)) for name, value in point.texts.items()]
        for summary in (*plots, *texts):
            self._append(Event(step=point.step, wall_time=time.time(), summary=summary))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, event: Event) -> None:
        self._file.append(frame_record(event.SerializeToString()))


def frame_record(data: bytes) -> bytes:
    """Return a record in TensorBoard's format: its length and its data, each followed by a checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc32c(length)) + data + struct.pack("<I", masked_crc32c(data))
