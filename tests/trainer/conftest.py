"""What the trainer's tests share: eight devices, a tiny job, and trainer processes driven as an agent does."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import pytest

from trainingjob_api.machine import AxisDegrees
from trainingjob_api.protocol import Failure, Phase
from trainingjob_api.world import JobIdentity, Layout, Member, RunConfig, Span, World
from trainingjob_trainer.wire import EVENTS_FD_VARIABLE, Command, Event, Start

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

UID = "0d4cf5e1-7d0e-4a51-9c0b-6f5ff0e5c3aa"
PATIENCE = 60.0


def make_layout(**changes: Any) -> Layout:
    """Return one slice of one host with two devices, unless changed."""
    values: dict[str, Any] = {
        "num_slices": 1,
        "hosts_per_slice": 1,
        "devices_per_host": 2,
        "ici": AxisDegrees(fsdp=2),
        "dcn": AxisDegrees(),
        "rows_per_shard": 2,
        "accumulation": 1,
        "padding_rows": 0,
    }
    return Layout(**values | changes)


SIZES = (
    make_layout(),
    make_layout(num_slices=2, dcn=AxisDegrees(data=2), rows_per_shard=1),
)


def make_spec(uri: Path, text: Path, **changes: Any) -> dict[str, Any]:
    """Return the spec of a tiny job as a dict; a change's key is a path with `__` between its parts."""
    spec: dict[str, Any] = {
        "slices": {"accelerator": "cpu", "topology": "1x2", "min": 1, "max": 2},
        "model": {
            "vocabSize": 272,
            "embedDim": 16,
            "mlpDim": 32,
            "numLayers": 2,
            "numHeads": 4,
            "numKvHeads": 2,
            "headDim": 8,
        },
        "data": {"train": [{"name": "text", "path": str(text)}]},
        "training": {"steps": 6, "globalBatchSize": 4, "sequenceLength": 16},
        "optimizer": {"learningRate": 0.01},
        "precision": {"compute": "float32"},
        "checkpoint": {"uri": str(uri), "save": {"everySteps": 2}},
        "metrics": {"everySteps": 1},
    }
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = spec
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return spec


def make_config(
    spec: dict[str, Any], layouts: tuple[Layout, ...] = SIZES, uid: str = UID, platform: str = "cpu"
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "job": JobIdentity(name="tiny", namespace="tests", uid=uid),
            "spec": spec,
            "accelerator_platform": platform,
            "layouts": layouts,
        }
    )


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def make_world(generation: int, num_hosts: int, lineage: tuple[Span, ...] = (), uid: str = UID) -> World:
    """Return a world of slices of one host each."""
    members = tuple(
        Member(process=host, slice=host, host=0, pod=f"pod-{host}", pod_uid=f"uid-{host}", address="127.0.0.1")
        for host in range(num_hosts)
    )
    coordinator = f"127.0.0.1:{free_port()}"
    return World(generation=generation, job_uid=uid, coordinator=coordinator, members=members, lineage=lineage)


class Trainer:
    """A trainer process and all that it said."""

    def __init__(self) -> None:
        reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainingjob_trainer.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            env={**os.environ, EVENTS_FD_VARIABLE: str(writing), "JAX_PLATFORMS": "cpu"},
        )
        os.close(writing)
        self.events: list[Event] = []
        self.log = ""
        self._news: queue.Queue[Event | None] = queue.Queue()
        self._readers = [
            threading.Thread(target=self._read_events, args=(reading,), daemon=True),
            threading.Thread(target=self._read_log, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_events(self, reading: int) -> None:
        with os.fdopen(reading, "rb") as events:
            for line in events:
                self._news.put(Event.model_validate_json(line))
        self._news.put(None)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            self.log = ""
            for line in output:
                self.log += line.decode(errors="replace")

    def wait(self, wanted: Callable[[Event], Any]) -> Event:
        """Return the next event that is wanted; every event before it is kept too."""
        while True:
            event = self._news.get(timeout=PATIENCE)
            assert event is not None, f"the trainer ended first: {self.events[-3:]}\n{self.log}"
            self.events.append(event)
            if wanted(event):
                return event

    def write(self, message: Start | Command) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(message.model_dump_json().encode() + b"\n")
        self.process.stdin.flush()

    def wait_for_step(self, step: int) -> None:
        self.wait(lambda event: event.progress and event.progress.step >= step)

    def wait_for_end(self) -> int:
        """Return the exit code, all events read."""
        while (event := self._news.get(timeout=PATIENCE)) is not None:
            self.events.append(event)
        code = self.process.wait(timeout=PATIENCE)
        for reader in self._readers:
            reader.join(timeout=PATIENCE)
        return code

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()
        for reader in self._readers:
            reader.join(timeout=PATIENCE)

    @property
    def phases(self) -> list[Phase]:
        return [event.phase for event in self.events if event.phase]

    @property
    def losses(self) -> dict[int, float]:
        return {p.step: p.loss for e in self.events if (p := e.progress) and p.loss is not None}

    @property
    def committed(self) -> list[int]:
        return [event.committed for event in self.events if event.committed is not None]

    @property
    def restored(self) -> int | None:
        return next((event.restored for event in self.events if event.restored is not None), None)

    @property
    def failure(self) -> Failure | None:
        return next((event.failure for event in self.events if event.failure), None)


class Crew:
    """Trainer processes of one test. Standbys are started ahead, as an agent does, because importing takes seconds."""

    def __init__(self) -> None:
        self._all: list[Trainer] = []
        self._standbys: list[Trainer] = []

    def prepare(self, count: int) -> None:
        while len(self._standbys) < count:
            trainer = Trainer()
            self._all.append(trainer)
            self._standbys.append(trainer)

    def start(self, config: RunConfig, world: World, compile_cache: Path | None = None) -> list[Trainer]:
        """Hand a world to as many trainers as it has members."""
        count = len(world.members)
        self.prepare(count)
        trainers, self._standbys = self._standbys[:count], self._standbys[count:]
        for process, trainer in enumerate(trainers):
            trainer.wait(lambda event: event.ready)
            cache = str(compile_cache or "")
            trainer.write(Start(config=config, world=world, process=process, compile_cache=cache))
        return trainers

    def close(self) -> None:
        for trainer in self._all:
            trainer.close()


@pytest.fixture
def crew() -> Iterator[Crew]:
    crew = Crew()
    yield crew
    crew.close()


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for compiled programs that all tests share: the tiny model compiles once a layout."""
    return tmp_path_factory.mktemp("programs")


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Return a folder with a little text."""
    folder = tmp_path / "text"
    folder.mkdir()
    for number in range(4):
        words = " ".join(f"word{(number * 37 + place * 11) % 101}" for place in range(120))
        (folder / f"part-{number}.txt").write_text(words)
    return folder
