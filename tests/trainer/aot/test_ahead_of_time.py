"""Programs of other sizes: compiled ahead by one process, loaded by the worlds that come, and never in the way."""

import json
import logging
import mmap
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.trainer.crew import PATIENCE, Crew, Trainer
from tests.support.trainer.tiny import SECRET, make_config, make_layout, make_spec, make_world
from trainingjob_agent.trainer_protocol import EVENTS_FD_VARIABLE, AgentEvent, StartWorld
from trainingjob_api.protocol import Progress
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.aot import neighbor_compiler
from trainingjob_trainer.aot.compile_request import program_names
from trainingjob_trainer.aot.neighbor_compiler import (
    MIN_COMPILE_BYTES,
    RESERVED_BYTES,
    WARMUP_STEPS,
    NeighborCompiler,
    neighbor_sizes,
)
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.available_memory import available_memory, resident_memory
from trainingjob_trainer.runtime.compile_cache import SHARED_FOLDER, CompileCache
from trainingjob_trainer.runtime.compile_cache_files import write_program
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

SIZES = tuple(
    make_layout(
        num_slices=size, dcn=AxisDegrees(data=size), rows_per_shard=1, padding_rows=2 * size - 4 if size > 2 else 0
    )
    for size in (1, 2, 4)
)
COMPILER = """
import json, os, sys, time

folder, part = sys.argv[1:]
request = json.loads(sys.stdin.readline())
said = {"names": request["names"], "nice": os.nice(0), "policy": os.sched_getscheduler(0), "pid": os.getpid()}
said["environment"] = sorted(os.environ)
fresh = f"{folder}/.{request['numSlices']}"
with open(fresh, "w") as file:
    json.dump(said, file)
os.replace(fresh, f"{folder}/asked-{request['numSlices']}.json")
if part == "fail":
    sys.exit("a line\\nno compiler for this")
if part == "stay":
    time.sleep(600)
"""
PLENTY = MIN_COMPILE_BYTES + RESERVED_BYTES


class World:
    """A world that trains as far as a test allows, and the requests to its compiler of neighbouring sizes."""

    def __init__(self, folder: Path, config: RunConfig, part: str, process: int, compile_cache: str) -> None:
        (folder / "compiler.py").write_text(COMPILER)
        self._asked = folder
        reading, writing = os.pipe()
        self._pipe = reading, writing
        self._events = AgentEvents(writing)
        world = make_world(1, 2)
        start = StartWorld(
            config=config, world=world, process=process, compile_cache=compile_cache, program_secret=SECRET
        )
        self.snapshots = SimpleNamespace(unallocated_bytes=0)
        self.neighbours = NeighborCompiler(
            start,
            self._events,
            self.snapshots,
            restored=100,
            compiler=(sys.executable, "-S", "-E", str(folder / "compiler.py"), str(folder), part),
        )

    def reach(self, step: int) -> None:
        self._events.send(AgentEvent(progress=Progress(step=step)))

    def asked(self, size: int) -> dict[str, Any] | None:
        path = self._asked / f"asked-{size}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def close(self) -> None:
        for end in self._pipe:
            os.close(end)


@pytest.fixture
def world(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[Callable[..., World]]:
    """Return a function that creates process 0 of a world of two slices, whose container has just enough memory."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(neighbor_compiler, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(neighbor_compiler, "available_memory", lambda: PLENTY)
    monkeypatch.setenv(EVENTS_FD_VARIABLE, "7")
    made: list[World] = []

    def make(part: str = "", process: int = 0, platform: str = "cpu", compile_cache: bool = True) -> World:
        config = make_config(make_spec(tmp_path / "root", tmp_path), SIZES, platform=platform)
        made.append(World(tmp_path, config, part, process, str(tmp_path / "kept") if compile_cache else ""))
        return made[-1]

    yield make
    for one in made:
        one.close()


def wait_for(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


NEIGHBOURS: dict[str, tuple[int, list[int]]] = {
    "the smaller one first": (2, [1, 4]),
    "the smallest": (1, [2]),
    "the largest": (4, [2]),
    "one that an edit took away": (3, [2, 4]),
}


@pytest.mark.parametrize(("size", "want"), NEIGHBOURS.values(), ids=NEIGHBOURS.keys())
def test_the_next_smaller_and_the_next_larger_size_are_neighbours(size: int, want: list[int]) -> None:
    assert neighbor_sizes(size, [1, 2, 4]) == want


EVALUATION = [{"name": "held-out", "path": "/text", "everySteps": 5}]
PROGRAMS: dict[str, tuple[dict[str, Any], Layout, tuple[str, ...]]] = {
    "the step alone": ({}, SIZES[1], ("train",)),
    "with batches that grow": (
        {"training__batchSchedule": [{"fromStep": 3, "globalBatchSize": 8}, {"fromStep": 5, "globalBatchSize": 16}]},
        SIZES[1],
        ("train-4", "train-8", "train"),
    ),
    "with evaluations": ({"evaluation": EVALUATION}, SIZES[1], ("train", "evaluate")),
    "with evaluations of several batches": (
        {
            "evaluation": [
                EVALUATION[0] | {"name": name, "maxPerDeviceBatch": limit}
                for name, limit in {"as-in-training": 3, "small": 1, "small-too": 1}.items()
            ]
        },
        SIZES[1].model_copy(update={"rows_per_shard": 2}),
        ("train", "evaluate", "evaluate-1"),
    ),
    "with samples": (
        {"evaluation": [EVALUATION[0] | {"samples": [{"prompt": "the"}]}]},
        SIZES[1],
        ("train", "evaluate", "prompt", "token"),
    ),
    "with a reference": (
        {"evaluation": EVALUATION, "objective": {"type": "dpo"}},
        SIZES[1].model_copy(update={"rows_per_shard": 2}),
        ("train", "evaluate"),
    ),
    "with an average": ({"optimizer__average": {}}, SIZES[1], ("train", "average")),
    "with statistics": ({"metrics__statistics": {}}, SIZES[1], ("train", "statistics")),
    "with a comparison of replicas": (
        {"protection__compareReplicas": {"everySteps": 10}},
        SIZES[1],
        ("train", "replicas"),
    ),
    "with snapshots": ({"checkpoint__snapshots": {}}, SIZES[1], ("train", "spread")),
    "with one replica that reads": (
        {"checkpoint__restore": {"broadcastFrom": "oneReplica"}},
        SIZES[1],
        ("train", "spread"),
    ),
    "with snapshots, on one host": ({"checkpoint__snapshots": {}}, SIZES[0], ("train",)),
}


@pytest.mark.parametrize(("changes", "layout", "want"), PROGRAMS.values(), ids=PROGRAMS.keys())
def test_programs_of_neighbouring_sizes_are_compiled_ahead(
    changes: dict[str, Any], layout: Layout, want: tuple[str, ...]
) -> None:
    spec = make_config(make_spec(Path("/run/a"), Path("/text"), **changes)).spec

    assert program_names(spec, layout) == want


def test_both_neighbours_are_compiled_once_the_world_has_settled(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    one = world()
    with one.neighbours:
        one.reach(100 + WARMUP_STEPS - 1)
        one.reach(100 + WARMUP_STEPS)
        wait_for(lambda: one.asked(4) and sum("compiled ahead" in line for line in caplog.messages) == 2)

    smaller, larger = one.asked(1), one.asked(4)
    assert smaller
    assert larger
    assert smaller["names"] == larger["names"] == ["train"]
    assert one.asked(2) is None


def test_a_world_that_has_not_settled_compiles_nothing(world: Callable[..., World]) -> None:
    one = world()
    with one.neighbours:
        one.reach(100 + WARMUP_STEPS - 1)

    assert one.asked(1) is None


def test_compiler_has_low_priority_and_no_variables_of_the_agent(
    world: Callable[..., World],
) -> None:
    one = world("stay")
    with one.neighbours:
        one.reach(200)
        wait_for(lambda: one.asked(1))
        printed = one.asked(1)
        assert printed
        assert (printed["nice"], printed["policy"]) == (19, os.SCHED_IDLE)
        assert Path(f"/proc/{printed['pid']}/oom_score_adj").read_text().strip() == "1000"
        assert os.getpgid(printed["pid"]) == os.getpgid(0)
        assert EVENTS_FD_VARIABLE not in printed["environment"]


def test_the_end_of_a_world_ends_its_compiler(world: Callable[..., World], caplog: pytest.LogCaptureFixture) -> None:
    one = world("stay")
    with one.neighbours:
        one.reach(200)
        wait_for(lambda: one.asked(1))
    printed = one.asked(1)

    assert printed
    assert not Path(f"/proc/{printed['pid']}").exists()
    assert one.asked(4) is None
    assert caplog.messages == ["compiling ahead slices=1 names=train"]


NOBODY: dict[str, dict[str, Any]] = {
    "another process than the first": {"process": 1},
    "no folder for compiled programs": {"compile_cache": False},
}


@pytest.mark.parametrize("changes", NOBODY.values(), ids=NOBODY.keys())
def test_processes_that_compile_nothing(world: Callable[..., World], changes: dict[str, Any], tmp_path: Path) -> None:
    one = world(**changes)
    one.reach(200)
    with one.neighbours:
        pass

    assert one.asked(1) is None
    assert not (tmp_path / "root").exists()


@pytest.mark.thorough
def test_size_that_cannot_be_compiled_reports_the_compiler_s_output(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    one = world("fail")
    with one.neighbours:
        one.reach(200)
        wait_for(lambda: sum("no compiler for this" in line for line in caplog.messages) == 2)


def test_without_memory_nothing_is_compiled_and_the_field_is_named(
    world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    one = world()
    one.snapshots.unallocated_bytes = 1
    with one.neighbours:
        one.reach(200)
        wait_for(lambda: sum("spec.runtime.resources.memory" in line for line in caplog.messages) == 2)

    assert one.asked(1) is None


@pytest.mark.parametrize("platform", ["cpu", "cuda"])  # a GPU is needed for compiling, and trains
def test_existing_programs_are_copied_and_not_compiled_and_unused_ones_are_deleted(
    world: Callable[..., World], tmp_path: Path, platform: str
) -> None:
    config = make_config(make_spec(tmp_path / "root", tmp_path), SIZES, platform=platform)
    own, larger = (
        CompileCache(str(tmp_path / "kept"), tmp_path / "root", config, layout, ProcessGroup(0, 1), SECRET)
        for layout in SIZES[1:]
    )
    kept, shared = tmp_path / "kept" / own.file_name("train"), tmp_path / "root" / SHARED_FOLDER
    for path in (kept, shared / larger.file_name("train"), shared / f"train-{'0' * 32}.program"):
        write_program(open_store(path.parent), path.name, path.name.encode(), SECRET)
    one = world("stay", platform=platform)
    with one.neighbours:
        one.reach(200)
        wait_for((shared / own.file_name("train")).exists if platform == "cuda" else lambda: one.asked(1))

    assert (one.asked(1) is None) == (platform == "cuda")
    assert {path.name for path in shared.iterdir()} == {own.file_name("train"), larger.file_name("train")}
    assert (shared / own.file_name("train")).read_bytes() == kept.read_bytes()
    assert one.asked(4) is None


CONTAINERS: dict[str, tuple[dict[str, str], int]] = {
    "no container": ({}, 8 << 30),
    "version 2": (
        {"memory.max": "1000000\n", "memory.current": "700000\n", "memory.stat": "anon 5\ninactive_file 100000\n"},
        400_000,
    ),
    "version 2, without a limit": (
        {"memory.max": "max\n", "memory.current": "700000\n", "memory.stat": "inactive_file 1\n"},
        8 << 30,
    ),
    "version 1": (
        {
            "memory/memory.limit_in_bytes": "1000000\n",
            "memory/memory.usage_in_bytes": "990000\n",
            "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 10000\n",
        },
        20_000,
    ),
    "more than there may be": ({"memory.max": "10", "memory.current": "20", "memory.stat": ""}, 0),
    "a limit above the machine": ({"memory.max": str(1 << 50), "memory.current": "20", "memory.stat": ""}, 8 << 30),
}


@pytest.mark.parametrize(("files", "want"), CONTAINERS.values(), ids=CONTAINERS.keys())
def test_free_memory_is_the_containers_or_the_machines(files: dict[str, str], want: int, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9999 kB\nMemAvailable:    8388608 kB\n")
    for name, content in files.items():
        path = tmp_path / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)

    assert available_memory(tmp_path / "cgroup", tmp_path) == want


def test_process_measures_its_memory() -> None:
    before = resident_memory()
    with mmap.mmap(-1, 64 << 20) as taken:  # what is freed before may serve another allocator anew
        taken.write(bytes(len(taken)))

        assert resident_memory() - before >= len(taken) // 2


@pytest.mark.slow
def test_a_world_loads_what_another_one_compiled_ahead_and_trains_to_the_same_bits(
    crew: Crew, tmp_path: Path, text: Path
) -> None:
    held_out = [{"name": "held-out", "path": str(text), "everySteps": 3}]

    def make(name: str) -> RunConfig:
        changes = {"training__steps": 100_000, "evaluation": held_out, "checkpoint__snapshots": {}}
        changes["protection__compareReplicas"] = {"everySteps": 2}
        return make_config(make_spec(tmp_path / name / "checkpoints", text, **changes))

    (one,) = crew.start(make("small"), make_world(1, 1), tmp_path / "small/kept")
    crew.prepare(2)
    wait_for(lambda: "compiling ahead slices=2 names=train,evaluate,spread,replicas" in one.log)
    one.process.send_signal(signal.SIGSTOP)  # else it leaves the compiler no CPU time on a small machine
    ahead, names = tmp_path / "small/checkpoints" / SHARED_FOLDER, {"train", "evaluate", "spread", "replicas"}
    wait_for(lambda: {path.name.partition("-")[0] for path in ahead.glob("*.program")} == names)
    one.process.send_signal(signal.SIGCONT)
    wait_for(lambda: "compiled ahead slices=2" in one.log)
    one.kill()
    shutil.copytree(ahead, tmp_path / "large/checkpoints" / SHARED_FOLDER)

    def train(name: str) -> list[Trainer]:
        trainers = crew.start(make(name), make_world(1, 2), tmp_path / name / "kept")
        crew.prepare(2)
        for trainer in trainers:
            trainer.wait_for_step(6)
        for trainer in trainers:
            trainer.kill()
        return trainers

    loaded, compiled = train("large"), train("other")

    for name in ("train", "evaluate", "replicas"):
        assert all(f"loaded a compiled program name={name}" in trainer.log for trainer in loaded), loaded[0].tell_logs()
        assert f"compiled a program name={name}" in compiled[0].log
    assert all(loaded[0].losses[step] == compiled[0].losses[step] for step in range(1, 7))
