"""Trackers: destinations of metrics beside the metrics file, each with a thread that keeps slow ones from training.

The field `metrics.NAME` of the spec switches on the module `trackers/NAME.py`. Its function `create_tracker` takes the
value of the field, and the run. Only jobs that use a tracker import its module and the library below it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import NamedTuple, Protocol

from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.world import JobIdentity
from trainingjob_trainer.store.port import Store

FOLDER = "metrics"
"""The folder of metrics and plots, below the root of the checkpoint store."""
LOG = logging.getLogger(__name__)
CLOSE_SECONDS = 10.0
"""Seconds for which the end of a trainer waits for the last points of a tracker."""
RETRY_SECONDS = 60.0
"""Seconds between two attempts to connect."""
MAX_QUEUED = 10_000
"""Points that wait for a slow destination; the oldest of more are dropped."""


class Point(NamedTuple):
    """Metrics and texts of one step, by name. `group` is `train`, `statistics`, or `held_out/NAME`.

    `time` is the Unix time in seconds at which they were measured. Points may wait for a long time to be sent.
    """

    group: str
    step: int
    generation: int
    time: float
    values: dict[str, float]
    texts: Mapping[str, str] = {}


class Run(NamedTuple):
    """What a tracker receives about the job. `restored` is the step from which this generation resumes."""

    job: JobIdentity
    store: Store
    restored: int


class UnreachableError(OSError):
    """A destination cannot be reached now, or cannot accept points now."""


class Tracker(Protocol):
    """A destination of metrics. All methods run in its own thread; they may block, and may raise any exception."""

    def connect(self) -> None:
        """Connect to the destination. Repeated every `RETRY_SECONDS` while it fails; points wait meanwhile."""

    def write(self, point: Point) -> None:
        """Write one point. After `UnreachableError` it is written again, once `connect` succeeds; else it is lost."""

    def close(self) -> None:
        """Send what is left, and free the resources. Not called if `connect` never succeeded."""


def open_trackers(metrics: Metrics, run: Run) -> list["TrackerThread"]:
    """Open the trackers that the section switches on.

    Raises:
        UntrustedFileError: a file of a tracker is not one of this project.
        OSError: a tracker cannot write to the run's store.
    """
    return [
        TrackerThread(name, import_module(f"{__package__}.{name}").create_tracker(settings, run))
        for name in tracker_names()
        if (settings := getattr(metrics, name))
    ]


def close_trackers(trackers: Sequence["TrackerThread"]) -> None:
    """Send all queued points and close the trackers, within `CLOSE_SECONDS` for all together."""
    for tracker in trackers:
        tracker.begin_close()
    deadline = time.monotonic() + CLOSE_SECONDS
    for tracker in trackers:
        tracker.finish_close(deadline)


def tracker_names() -> list[str]:
    """Return the fields of the metrics section that switch on a tracker: all but those that select the metrics."""
    return [name for name in Metrics.model_fields if name not in ("every_steps", "statistics")]


def quote_markdown(text: str) -> str:
    """Return a text as a block of code, for destinations that read Markdown."""
    return "".join(f"    {line}\n" for line in text.splitlines())


class TrackerThread:
    """Sends points to a tracker beside training. The first of several failures is logged as a warning."""

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name = name
        self._tracker = tracker
        self._points: deque[Point] = deque(maxlen=MAX_QUEUED)
        self._changed = threading.Condition()
        self._is_closing = False
        self._is_unreachable = False
        self._has_unsent_point = False
        self._error: Exception | None = None  # None: the last action succeeded
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def add(self, point: Point) -> None:
        """Queue one point."""
        with self._changed:
            self._points.append(point)
            self._changed.notify()

    @property
    def is_closed(self) -> bool:
        """Return whether the thread has ended."""
        return not self._thread.is_alive()

    def begin_close(self) -> None:
        """Let the thread send all queued points, close the tracker and end."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()

    def finish_close(self, deadline: float) -> None:
        """Wait for the end of the thread until a monotonic time, but not for a destination that is unreachable."""
        if not self._is_unreachable:
            self._thread.join(max(deadline - time.monotonic(), 0))
        if self._thread.is_alive() or self._points or self._has_unsent_point:
            LOG.warning("last metrics not sent tracker=%s", self._name)

    def _run(self) -> None:
        if not self._connect():
            return
        while (point := self._take()) is not None:
            if not self._write(point):
                return
        self._try("close", self._tracker.close)

    def _write(self, point: Point) -> bool:
        """Write a point, and again after the destination was unreachable; False: training ended before."""
        write = partial(self._tracker.write, point)
        if self._try("write", write) or not isinstance(self._error, UnreachableError):
            return True
        if not self._connect():
            self._has_unsent_point = True
            return False
        self._try("write", write)  # once: a point that the destination never accepts must not hold up all others
        return True

    def _connect(self) -> bool:
        """Return whether the tracker is connected; False: training ended before."""
        while not self._try("connect", self._tracker.connect):
            self._is_unreachable = True
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closing, RETRY_SECONDS):
                    return False
        self._is_unreachable = False
        return True

    def _take(self) -> Point | None:  # None: all points are sent, and no more will come
        with self._changed:
            self._changed.wait_for(lambda: self._points or self._is_closing)
            return self._points.popleft() if self._points else None

    def _try(self, action: str, call: Callable[[], None]) -> bool:
        """Return whether an action succeeded."""
        try:
            call()
        except Exception as error:  # noqa: BLE001  # whatever a client library raises: it costs points, not training
            if self._error is None:
                LOG.warning("tracker %s failed tracker=%s error=%s", action, self._name, error)
            self._error = error
        else:
            self._error = None
        return self._error is None
