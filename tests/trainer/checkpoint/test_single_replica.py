"""Only one replica of a state is read, and all devices receive the same bits."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.support.trainer.crew import Crew
from tests.support.trainer.forked import INDICES
from tests.support.trainer.meeting import renumber, together
from tests.support.trainer.shelf import at, step_path
from tests.support.trainer.tiny import SIZES, make_config, make_layout, make_spec, make_world
from tests.trainer.snapshots.test_snapshotter import bits, describe, make_state, programs, spec_with
from trainingjob_api.network.resolve import resolve_network
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout, Span
from trainingjob_trainer.checkpoint import single_replica
from trainingjob_trainer.checkpoint.frozen_tensors import ArrayFolders, split_items
from trainingjob_trainer.checkpoint.items import saved_items
from trainingjob_trainer.checkpoint.manifest import Integrity, hash_files, list_files, write_integrity
from trainingjob_trainer.checkpoint.single_replica import SingleReplicaRestore
from trainingjob_trainer.checkpoint.verify import verify
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import State

FOUR_SLICES = make_layout(
    num_slices=4, devices_per_host=2, ici=AxisDegrees(fsdp=2), dcn=AxisDegrees(data=4), rows_per_shard=1
)
EVERY_AXIS = make_layout(devices_per_host=8, ici=AxisDegrees(data=2, fsdp=2, tensor=2))
LAYOUTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "a replica a slice": (FOUR_SLICES, {}),
    "parameters in half precision": (FOUR_SLICES, {"precision__params": "bfloat16"}),
    "moments split over the replicas": (FOUR_SLICES, {"parallelism__shardOptimizerOverData": True}),
    "every axis": (EVERY_AXIS, {}),
    "frozen tensors in another folder": (FOUR_SLICES, {"optimizer__trainable": ["layers.*"]}),
}


def save(folder: Path, state: State) -> None:
    save_items(folder, saved_items(state))


def save_items(folder: Path, items: dict[str, Any]) -> None:
    if items:
        with ocp.StandardCheckpointer() as saver:
            saver.save(folder, items)


@pytest.mark.parametrize(("layout", "changes"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_state_read_by_one_replica_is_on_every_device_with_the_same_bits(
    layout: Layout, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_with(**changes)
    described, tensors = describe(layout, spec), resolve_network(spec).frozen_names
    want = make_state(described, 7)
    folders = ArrayFolders(str(tmp_path / "7"), str(tmp_path / "frozen"), tensors)
    for folder, items in zip(folders[:2], split_items(saved_items(want), tensors), strict=True):
        save_items(Path(folder), items)
    given: list[State] = []
    spread = single_replica.broadcast_shards

    def watch(programs: Any, state: State, assembled: State) -> State:
        given.append(jax.tree.map(np.asarray, [piece.data for piece in assembled.step.addressable_shards]))
        return spread(programs, state, assembled)

    monkeypatch.setattr(single_replica, "broadcast_shards", watch)

    found = SingleReplicaRestore(described, Shards(described), programs(layout), ProcessGroup(0, 1)).load(folders)

    assert bits(found) == bits(want)
    assert [leaf.sharding for leaf in jax.tree.leaves(found)] == [leaf.sharding for leaf in jax.tree.leaves(described)]
    assert [int(numbers) for numbers in given[0]] == [int(want.step), *[0] * 7], "one device has it from storage"


@pytest.mark.thorough
def test_only_devices_of_the_first_replica_are_read_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = describe(FOUR_SLICES, spec_with())
    save(tmp_path / "7", make_state(described, 7))
    read: set[jax.Device] = set()
    take = SingleReplicaRestore._collect_shards

    def watch(self: SingleReplicaRestore, leaves: list[Any]) -> dict[int, np.ndarray]:
        read.update(device for leaf in leaves for device in leaf.sharding.device_set)
        return take(self, leaves)

    monkeypatch.setattr(SingleReplicaRestore, "_collect_shards", watch)

    SingleReplicaRestore(described, Shards(described), programs(FOUR_SLICES), ProcessGroup(0, 1)).load(
        ArrayFolders(str(tmp_path / "7"))
    )

    assert read == set(jax.devices()[:2])


def test_a_process_of_another_replica_opens_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described = describe(FOUR_SLICES, spec_with())
    replica = SingleReplicaRestore(
        described, Shards(described, local=jax.devices()[2:4]), programs(FOUR_SLICES), ProcessGroup(1, 4)
    )
    monkeypatch.setattr(single_replica, "assemble", lambda shards, state, held, gives: (held, gives))
    monkeypatch.setattr(single_replica, "broadcast_shards", lambda programs, state, given: given)

    assert replica.readers == (0,)
    assert replica.saves_reads
    assert replica.load(ArrayFolders(str(tmp_path / "that is not there"))) == ({}, set())


def test_readers_are_found_if_the_runtime_numbers_processes_differently(tmp_path: Path) -> None:
    described = describe(FOUR_SLICES, spec_with())
    want = make_state(described, 7)
    save(tmp_path / "7", want)
    peers = renumber(ProcessGroup(1, 4), (2, 0, 3, 1))

    reader = SingleReplicaRestore(described, Shards(described), programs(FOUR_SLICES), peers)

    assert reader.readers == (1,)
    assert bits(reader.load(ArrayFolders(str(tmp_path / "7")))) == bits(want)


def test_single_replica_restore_saves_no_reads_if_all_processes_are_of_one_replica() -> None:
    described = describe(EVERY_AXIS, spec_with())

    assert not SingleReplicaRestore(described, Shards(described), programs(EVERY_AXIS), ProcessGroup(0, 1)).saves_reads


def test_the_readers_alone_prove_the_files(tmp_path: Path) -> None:
    (tmp_path / "first").write_text("one")
    (tmp_path / "second").write_text("two")
    folder = at(tmp_path)
    files = hash_files(folder, list_files(folder))
    write_integrity(folder, Integrity(job_uid="u", generation=1, step=1, data="d", state="s", files=files))
    (tmp_path / "first").write_text("eno")
    (tmp_path / "second").unlink()

    assert together(4, lambda peers: verify(folder, peers, (0, 2)).damage) == [
        "first has changed since it was saved",
        "",
        "second is missing",
        "",
    ]


def read_bytes(process: int) -> int:
    """Return how many bytes a process has read from files so far."""
    lines = dict(line.split(": ") for line in Path(f"/proc/{process}/io").read_text().splitlines())
    return int(lines["rchar"])


WORLDS: dict[str, tuple[Layout, str, set[int]]] = {
    "a replica a host": (SIZES[1], "0,1", {0}),
    "a replica two hosts, whose runtime counts them otherwise": (
        make_layout(
            num_slices=4, devices_per_host=1, ici=AxisDegrees(), dcn=AxisDegrees(data=2, fsdp=2), rows_per_shard=1
        ),
        "2,0,3,1",
        {1, 3},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "indices", "readers"), WORLDS.values(), ids=WORLDS.keys())
def test_world_resumes_from_the_state_that_one_replica_read(
    crew: Crew,
    tmp_path: Path,
    text: Path,
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    layout: Layout,
    indices: str,
    readers: set[int],
) -> None:
    monkeypatch.setenv(INDICES, indices)
    root = tmp_path / "run"
    large = {"model__embedDim": 256, "model__mlpDim": 1024, "training__steps": 4}
    config = make_config(make_spec(root, text, **large), (layout,))
    first = crew.start(config, make_world(1, layout.num_hosts), programs)
    for trainer in first:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
    shutil.rmtree(step_path(root, 4))

    config = make_config(make_spec(root, text, **large, checkpoint__restore={"broadcastFrom": "oneReplica"}), (layout,))
    second = crew.start(config, make_world(2, layout.num_hosts, (Span(generation=1, first=1),)), programs)
    for trainer in second:
        trainer.wait(lambda event: event.restored is not None)
    read = [read_bytes(trainer.process.pid) for trainer in second]
    for trainer in second:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert trainer.restored == 2
        assert trainer.losses == {step: first[0].losses[step] for step in (3, 4)}

    size = sum(path.stat().st_size for path in step_path(root, 2).rglob("*") if path.is_file())
    assert size > 10 * 2**20
    assert {process for process, number in enumerate(read) if number - min(read) > size / 4} == readers
    assert sum(read) - len(read) * min(read) > size, "to prove it and to load it"
