"""One process of a replica that trains a tiny job: a world for each slice, and a store that all slices have in common.

The file `job` in the job's folder stands for the operator: it has the slices that train, and when they save and end.
Each process appends a line to `<slice>-<generation>-<process>.jsonl` after each step and each round.
"""

import hashlib
import json
import multiprocessing
import os
import time
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import jax

from e2e.cluster.run_program import free_port
from tests.support.patience import ENDLESS_SECONDS
from tests.support.trainer.tiny import UID, make_config, make_layout, make_spec
from tests.support.trainer.training import BATCH, make_index, spec_with
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Member, World
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.data.loader import BatchLoader
from trainingjob_trainer.data.sampler import SampleShare
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.replicas.outer_update import OuterRates
from trainingjob_trainer.replicas.replica_training import RoundSchedule, describe_saved, open_replica
from trainingjob_trainer.replicas.round_agreement import RoundAgreement
from trainingjob_trainer.replicas.round_files import Replica, RoundFiles
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.process_group import configure, connect
from trainingjob_trainer.state import Signal
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.store.opening import open_store

NUM_SLICES, NUM_HOSTS, SYNC_EVERY, SAVE_EVERY = 2, 2, 4, 8
ENDLESS_STEPS = 1_000_000
NONE = (ENDLESS_STEPS, ENDLESS_STEPS)
type Steps = tuple[int, int]
LAYOUT = make_layout(
    hosts_per_slice=NUM_HOSTS,
    devices_per_host=1,
    ici=AxisDegrees(data=1, fsdp=NUM_HOSTS),
    rows_per_shard=BATCH // NUM_SLICES // NUM_HOSTS,
)
FORKING = multiprocessing.get_context("forkserver")
FORKING.set_forkserver_preload(["tests.support.trainer.forked", __name__])


@dataclass(frozen=True)
class Host:
    """A host of a slice, in the world of one generation."""

    folder: Path
    slice: int
    generation: int
    process: int
    coordinator: str

    @property
    def log(self) -> Path:
        """Return the file of its lines."""
        return self.folder / f"{self.slice}-{self.generation}-{self.process}.jsonl"

    def read_lines(self) -> list[dict[str, Any]]:
        """Return its complete lines."""
        text = self.log.read_text() if self.log.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def start_slice(folder: Path, number: int, generation: int) -> dict[Host, BaseProcess]:
    """Start the processes of a slice, which join a world of their slice alone."""
    coordinator = f"127.0.0.1:{free_port()}"
    hosts = [Host(folder, number, generation, process, coordinator) for process in range(NUM_HOSTS)]
    started = {host: FORKING.Process(target=train_slice, args=(host,), daemon=True) for host in hosts}
    for process in started.values():
        process.start()
    return started


def set_job(folder: Path, live: tuple[int, ...], last_step: int = ENDLESS_STEPS, unsaved: Steps = NONE) -> None:
    """Set the slices that train, the last step, and the first and last of the steps without checkpoints."""
    fresh = folder / "job.new"
    fresh.write_text(json.dumps([live, last_step, unsaved]))
    fresh.replace(folder / "job")


def read_job(folder: Path) -> tuple[list[int], int, Steps]:
    """Return the slices that train, the last step, and the first and last of the steps without checkpoints."""
    live, last_step, (first, last) = json.loads((folder / "job").read_text())
    return live, last_step, (first, last)


def train_slice(host: Host) -> None:
    """Join the world of a slice, restore, join the rounds of the others, and train up to the last step."""
    members = tuple(
        Member(process=process, slice=host.slice, host=process, pod="", pod_uid=f"{process}", address="127.0.0.1")
        for process in range(NUM_HOSTS)
    )
    world = World(generation=host.generation, job_uid=UID, coordinator=host.coordinator, members=members)
    configure("cpu", LAYOUT, world, host.process)
    peers = connect(world, host.process, LAYOUT, "cpu")
    spec = spec_with(schedule__type="constant", training__steps=ENDLESS_STEPS)
    steps = StepPrograms(spec, build_mesh(jax.devices(), LAYOUT))
    shardings = jax.tree.map(lambda leaf: leaf.sharding, steps.state_shapes)
    store, split = host.folder / "store", split_model_of(spec).param_split
    events = AgentEvents(os.open(os.devnull, os.O_WRONLY))
    config = make_config(make_spec(store, store, checkpoint__save__everySteps=SAVE_EVERY))
    checkpoints = Checkpoints(str(store), config, world, peers, "index", events, host.slice)
    restored = checkpoints.restore(describe_saved(steps.state_shapes, split))
    state = restored or jax.jit(steps.init, out_shardings=shardings)()
    batches = BatchLoader(LAYOUT, steps.batch_sharding, BATCH, share=SampleShare(host.slice, NUM_SLICES))
    index, controls = make_index(spec), steps.controls(Signal.NONE, ENDLESS_STEPS)
    program = jax.jit(steps.train, donate_argnums=0, out_shardings=(shardings, None))
    # Before it joins: the others wait for it from then on.
    step = program.lower(steps.state_shapes, batches.train_batch(index, 1, spec.training.seed), controls).compile()
    files = RoundFiles(open_store(store), UID, 0)
    agreement = RoundAgreement(
        files, UID, lambda: frozenset(read_job(host.folder)[0]), ENDLESS_SECONDS, poll_seconds=0.02
    )
    replica, rates = Replica(host.slice, host.generation), OuterRates(0.3, 0.9)
    schedule = RoundSchedule(SYNC_EVERY, ENDLESS_STEPS, rates)
    state, training = open_replica(agreement, replica, peers, schedule, split, steps.state_shapes, state)
    checkpoints.replica = training
    with host.log.open("a", buffering=1) as log:

        def report(**values: object) -> None:
            log.write(json.dumps({"pid": os.getpid(), "time": time.monotonic(), **values}) + "\n")

        number, state, _ = training.join(state)
        report(joined=number, restored=checkpoints.newest)
        while not read_job(host.folder)[0]:
            time.sleep(0.02)
        while number < read_job(host.folder)[1]:
            number += 1
            batch = batches.train_batch(index, number, spec.training.seed)
            state, metrics = step(state, batch, controls)
            report(step=number, loss=float(metrics.loss))
            if training.is_due(number):
                ended = number
                number, state, dropped_steps = training.end_round(ended, state)
                outer = [*training.rounds.outer.params.values(), *training.rounds.outer.momentum.values()]
                report(
                    ended=number,
                    members=training.newest_end.members if training.newest_end else (),
                    dropped=dropped_steps,
                    base=training.rounds.base,
                    outer=hashlib.sha256(b"".join(shard.tobytes() for shard in outer)).hexdigest(),
                )
                first, last = read_job(host.folder)[2]
                if checkpoints.is_due(number) and not first <= number <= last:
                    checkpoints.save(number, state)
        checkpoints.wait()
        peers.exit_barrier(ENDLESS_SECONDS)
