"""Traces of optimizer steps, in the layout that XProf and TensorBoard open.

A trace is `profiles/plugins/profile/NAME/HOST.xplane.pb` in the run's store, with `HOST.trace.json.gz` for Perfetto.
All hosts use one name for a trace, so that they appear together. A trace that fails costs the trace, and no step.
"""

import logging
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax

from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_api.inspection import TRACE_NOT_WRITTEN, TRACE_WRITTEN
from trainingjob_trainer.monitoring.control_signals import ControlSignals
from trainingjob_trainer.store.port import Store

LOG = logging.getLogger(__name__)
FOLDER = "profiles"
"""The folder of all traces, below the root of the checkpoint store: the log directory for XProf."""
RUNS = f"{FOLDER}/plugins/profile"
"""The folder in which XProf looks for traces."""
SUFFIXES = (".xplane.pb", ".trace.json.gz")
CLOSE_SECONDS = 10.0
"""Seconds for which the end of a trainer waits for a trace that is being written."""
CHUNK_BYTES = 1 << 22


@dataclass
class _Trace:
    """A trace in progress. `first` and `last` are its steps."""

    name: str
    first: int
    last: int
    session: jax.profiler.ProfileSession = field(default_factory=jax.profiler.ProfileSession)


class StepProfiler:
    """Traces the steps that the spec names, on the hosts that it names, and the steps that `signals` request.

    The loop calls `begin_step` before it dispatches a step, and `end_step` afterwards. A trace begins when the device
    is idle and ends when its last step is computed, so that it contains whole steps.
    """

    def __init__(self, start: StartWorld, store: Store, signals: ControlSignals) -> None:
        profiling = start.config.spec.profiling
        is_traced = profiling is not None and (profiling.hosts == "all" or start.process == 0)
        self._profiling = profiling if is_traced else None
        self._store = store
        self._signals = signals
        self._generation = start.world.generation
        member = start.world.members[start.process]
        self._host = f"slice-{member.slice}-host-{member.host}"
        self._trace: _Trace | None = None
        self._newest_step = 0
        self._writer: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self._trace:
            self._trace.last = self._newest_step  # the world ends before the last step of the trace
            self._finish(self._trace)
        if self._writer:
            self._writer.join(CLOSE_SECONDS)
            if self._writer.is_alive():
                LOG.warning("trace not written: the world ends before it is complete")

    def begin_step(self, step: int, newest: Any) -> None:
        """Begin a trace that is due with a step. `newest` are the newest dispatched arrays."""
        trace = None if self._trace else self._find_due(step)
        if trace is None:
            return
        jax.block_until_ready(newest)
        try:
            trace.session.start()
        except Exception as error:  # noqa: BLE001  # whatever the profiler of a platform raises
            self._give_up(trace, error)
        else:
            self._trace = trace

    def _find_due(self, step: int) -> _Trace | None:  # None: no trace begins with this step
        if order := self._signals.take_trace():
            return _Trace(order.name, step, step + order.steps - 1)
        last = self._profiling.find_last_step(step) if self._profiling else None
        return None if last is None else _Trace(f"step-{step:09}.g{self._generation}", step, last)

    def end_step(self, step: int, newest: Any) -> None:
        """End the trace whose last step this is. `newest` are arrays of the step."""
        self._newest_step = step
        if self._trace and step >= self._trace.last:
            jax.block_until_ready(newest)
            self._finish(self._trace)

    def _finish(self, trace: _Trace) -> None:
        """End the trace, and write it in the background."""
        self._trace = None
        try:
            trace.session.stop()
        except Exception as error:  # noqa: BLE001  # whatever the profiler of a platform raises
            self._give_up(trace, error)
            return
        if self._writer:
            self._writer.join()  # one trace in memory beside the next is enough
        self._writer = threading.Thread(target=self._write, args=(trace,), name="trace", daemon=True)
        self._writer.start()

    def _write(self, trace: _Trace) -> None:
        try:
            with tempfile.TemporaryDirectory() as folder:
                trace.session.export_profile_data(folder, session_id=trace.name)
                for file in Path(folder).rglob("*"):
                    suffix = next((suffix for suffix in SUFFIXES if file.name.endswith(suffix)), None)
                    if suffix:
                        self._store.write(f"{RUNS}/{trace.name}/{self._host}{suffix}", _read_chunks(file))
        except Exception as error:  # noqa: BLE001  # a full or failing store costs the trace
            LOG.warning("%s", TRACE_NOT_WRITTEN.format(name=trace.name, error=error))
        else:
            steps, folder = f"{trace.first}-{trace.last}", self._store.locate(FOLDER)
            LOG.info("%s", TRACE_WRITTEN.format(name=trace.name, steps=steps, folder=folder))

    def _give_up(self, trace: _Trace, error: Exception) -> None:
        """Begin no more traces of the spec in this world: the next one would fail too."""
        LOG.warning("%s", TRACE_NOT_WRITTEN.format(name=trace.name, error=error))
        self._profiling = None


def _read_chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while part := file.read(CHUNK_BYTES):
            yield part
