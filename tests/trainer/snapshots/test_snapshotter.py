"""Snapshots in a host's memory: taken, kept, rejected, and restored to the same bits, on any mesh."""

import errno
import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.meeting import together
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from tests.support.trainer.training import spec_with
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout, Rollback, Span, World
from trainingjob_operator.core.planner.snapshots import snapshot_bytes
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.lineage import Provenance
from trainingjob_trainer.snapshots.snapshot_files import Key
from trainingjob_trainer.snapshots.snapshot_restore import SnapshotRestore, assemble, broadcast_shards
from trainingjob_trainer.snapshots.snapshotter import Snapshots
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import State
from trainingjob_trainer.step import StepPrograms

DATA = "index"
TWO_SLICES = make_layout(num_slices=2, ici=AxisDegrees(fsdp=2), dcn=AxisDegrees(data=2))
ONE_SLICE = make_layout(ici=AxisDegrees(fsdp=2), rows_per_shard=4)
FIRST = Span(generation=1, first=1)
WORLD = make_world(1, 1)
NEXT = make_world(2, 1, (FIRST,))

type Opened = Callable[..., Snapshots]


def describe(layout: Layout = TWO_SLICES, spec: TrainingJobSpec | None = None) -> State:
    """Return the shapes and shardings of a tiny job's state."""
    return _describe(layout, (spec or spec_with()).model_dump_json())


@cache
def _describe(layout: Layout, spec: str) -> State:
    devices = jax.devices()[: layout.num_devices]
    return StepPrograms(TrainingJobSpec.model_validate_json(spec), build_mesh(devices, layout)).state_shapes


def make_state(described: State, seed: int) -> State:
    """Return a state of random bits, NaNs of all kinds and negative zeros among them."""
    random = np.random.default_rng(seed)

    def fill(leaf: Any) -> jax.Array:
        dtype = np.dtype(leaf.dtype)
        bits = random.bytes(int(np.prod(leaf.shape, dtype=np.int64)) * dtype.itemsize)
        return jax.device_put(np.frombuffer(bits, dtype).reshape(leaf.shape), leaf.sharding, may_alias=False)

    state: State = jax.tree.map(fill, described)
    return state


def bits(state: State) -> list[bytes]:
    """Return the bits on each device."""
    return [np.asarray(piece.data).tobytes() for leaf in jax.tree.leaves(state) for piece in leaf.addressable_shards]


def read_bits(state: State) -> list[bytes]:
    """Return the bits of each array as a whole."""
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Return a function that opens the snapshots of a host in a world."""
    everything: list[Snapshots] = []

    def open_snapshots(
        world: World,
        described: State | None = None,
        data: str = DATA,
        folder: Path = tmp_path,
        **settings: Any,
    ) -> Snapshots:
        state = described or describe()
        everything.append(Snapshots(str(folder), 5, world, data, state, Shards(state), **settings))
        return everything[-1]

    yield open_snapshots
    for snapshots in everything:
        snapshots.close()


def take(snapshots: Snapshots, *steps: int, described: State | None = None, restored: Key | None = None) -> None:
    """Take snapshots of states whose bits follow from the step."""
    snapshots.begin(restored, Provenance())
    for step in steps:
        snapshots.take(step, make_state(described or describe(), step))
    snapshots.wait()


def programs(layout: Layout = TWO_SLICES) -> CompileCache:
    config = make_config(make_spec(Path("/unused"), Path("/unused")), (layout,))
    return CompileCache("", Path("/unused"), config, layout, ProcessGroup(0, 1))


def recall(snapshots: Snapshots, described: State | None = None) -> SnapshotRestore:
    return SnapshotRestore(snapshots, described or describe(), programs(), ProcessGroup(0, 1))


LAYOUTS: dict[str, tuple[Layout, dict[str, Any]]] = {
    "split inside slices": (TWO_SLICES, {}),
    "parameters in half precision": (TWO_SLICES, {"precision__params": "bfloat16"}),
    "moments split over slices": (TWO_SLICES, {"parallelism__shardOptimizerOverData": True}),
    "every axis": (make_layout(devices_per_host=8, ici=AxisDegrees(data=2, fsdp=2, tensor=2)), {}),
}


@pytest.mark.parametrize(("layout", "changes"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_a_snapshot_is_put_back_to_the_last_bit(layout: Layout, changes: dict[str, Any], opened: Opened) -> None:
    described = describe(layout, spec_with(**changes))
    take(opened(WORLD, described), 5, described=described)

    found = recall(opened(NEXT, described), described)

    assert found.newest == (1, 5)
    restored = found.load((1, 5))
    assert restored is not None
    assert bits(restored) == bits(make_state(described, 5))
    assert [leaf.sharding for leaf in jax.tree.leaves(restored)] == [
        leaf.sharding for leaf in jax.tree.leaves(described)
    ]


def test_a_snapshot_on_disk_is_put_back_and_one_is_cached_at_a_time(opened: Opened) -> None:
    snapshots = opened(WORLD, in_memory=False)
    size = snapshots.unallocated_bytes
    assert opened(WORLD).unallocated_bytes == 3 * size > 0

    take(snapshots, 5, 10, 15, 20)
    found = recall(opened(NEXT, in_memory=False))

    assert snapshots.unallocated_bytes == size
    assert found.newest == (1, 20)
    restored = found.load((1, 15))
    assert restored is not None
    assert bits(restored) == bits(make_state(describe(), 15))


def test_training_does_not_change_the_snapshot_that_it_resumed_from(opened: Opened) -> None:
    consume = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    take(opened(WORLD), 5)
    restored = recall(opened(NEXT)).load((1, 5))
    assert restored is not None
    jax.block_until_ready(consume(consume(restored)))

    again = recall(opened(NEXT)).load((1, 5))

    assert again is not None
    assert read_bits(again) == read_bits(make_state(describe(), 5))


def test_smaller_world_resumes_from_snapshots_of_a_larger_one(opened: Opened) -> None:
    take(opened(WORLD), 5)

    found = recall(opened(NEXT, describe(ONE_SLICE)), describe(ONE_SLICE))

    assert found.newest == (1, 5)
    restored = found.load((1, 5))
    assert restored is not None
    assert read_bits(restored) == read_bits(make_state(describe(), 5))


def test_a_world_that_cuts_elsewhere_finds_nothing(opened: Opened) -> None:
    take(opened(WORLD), 5)
    elsewhere = describe(make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=4)))

    assert recall(opened(NEXT, elsewhere), elsewhere).newest is None


SPREAD = {name: LAYOUTS[name] for name in LAYOUTS if name != "moments split over slices"}


@each("case", SPREAD, "parameters in half precision")
def test_state_of_one_device_reaches_all_with_the_same_bits(case: tuple[Layout, dict[str, Any]]) -> None:
    layout, changes = case
    described = describe(layout, spec_with(**changes))
    want = make_state(described, 7)
    shards = Shards(described)
    held = {
        number: np.asarray(replica)
        for number, (_, replica) in zip(shards.local_shards, shards.local_arrays(want), strict=True)
    }

    given = assemble(shards, described, held, set(held))
    assert bits(given) != bits(want)

    assert bits(broadcast_shards(programs(layout), described, given)) == bits(want)


def test_the_state_may_be_consumed_once_it_is_copied(opened: Opened) -> None:
    consume = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    snapshots = opened(WORLD)
    snapshots.begin(None, Provenance())
    state = consume(make_state(describe(), 0))
    want = read_bits(state)

    snapshots.take(5, state)
    for _ in range(3):
        state = consume(state)
    snapshots.wait()

    restored = recall(opened(NEXT)).load((1, 5))
    assert restored is not None
    assert read_bits(restored) == want


def test_two_snapshots_are_kept_besides_the_pending_one(opened: Opened, tmp_path: Path) -> None:
    snapshots = opened(WORLD)
    take(snapshots, 5, 10, 15, 20)

    assert sorted(opened(NEXT).find()) == [(1, 15), (1, 20)]
    assert snapshots.newest == 20
    assert len(list(tmp_path.glob("*.header"))) == 2


def test_restored_snapshot_is_kept_when_others_are_void(opened: Opened) -> None:
    take(opened(WORLD), 5, 10)  # other hosts never finished step 10

    second = opened(NEXT)
    take(second, restored=(1, 5))
    assert sorted(second.find()) == [(1, 5), (1, 10)]
    take(second, 10, restored=(1, 5))

    history = (Span(generation=1, first=1, last=5), Span(generation=2, first=6, tier="ram"))
    assert sorted(opened(make_world(3, 1, history)).find()) == [(1, 5), (2, 10)]


FENCES: dict[str, tuple[World, str, dict[str, Any]]] = {
    "another job": (make_world(2, 1, (FIRST,), uid="other"), DATA, {}),
    "a step after what the next generation went on from": (
        make_world(3, 1, (Span(generation=1, first=1, last=4), Span(generation=2, first=5))),
        DATA,
        {},
    ),
    "a generation that was left out": (make_world(3, 1, (Span(generation=2, first=1),)), DATA, {}),
    "a generation of this world's own number": (make_world(1, 1), DATA, {}),
    "other rows": (NEXT, "another index", {}),
    "another model": (NEXT, DATA, {"model__mlpDim": 64}),
    "other numbers": (NEXT, DATA, {"precision__params": "bfloat16"}),
}


@pytest.mark.parametrize(("world", "data", "changes"), FENCES.values(), ids=FENCES.keys())
def test_a_snapshot_of_another_history_is_not_found(
    world: World, data: str, changes: dict[str, Any], opened: Opened
) -> None:
    take(opened(WORLD), 5)

    assert opened(NEXT).find()
    assert not opened(world, describe(spec=spec_with(**changes)), data).find()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def cut(path: Path, place: int) -> None:
    path.write_bytes(path.read_bytes()[:place])


def remove(path: Path, _: int) -> None:
    path.unlink()


def test_rollback_voids_snapshots_too(opened: Opened) -> None:
    rollbacks, skipped = (Rollback(lineage=1, generation=1, step=8, parent=5),), ((20, 32),)
    take(opened(WORLD), 5, 10)
    second = opened(make_world(2, 1, (FIRST,), rollbacks=rollbacks))
    assert recall(second).newest == (1, 5)
    past = Provenance(skipped=skipped, batch_sizes=((1, 4), (3, 8)), phase_runs=((0, 1), (24, 7), (32, 1)))
    second.begin((1, 5), past)
    second.take(10, make_state(describe(), 3))
    second.wait()
    history = (Span(generation=1, first=1, last=5), Span(generation=2, first=6))

    found = recall(opened(make_world(3, 1, history, rollbacks=rollbacks)))

    assert (found.newest, found.past((2, 10)), found.past((1, 5))) == ((2, 10), past, Provenance())
    assert recall(opened(make_world(3, 1, history))).newest == (1, 5)


DAMAGES: dict[str, tuple[str, Callable[[Path, int], None], int]] = {
    "a bit of the numbers": ("snapshot-1", flip, 1000),
    "numbers cut off": ("snapshot-1", cut, 1000),
    "no numbers": ("snapshot-1", remove, 0),
    "a bit of the header's hash": ("snapshot-1.header", flip, 3),
    "a bit of the header": ("snapshot-1.header", flip, 200),
    "a header cut off": ("snapshot-1.header", cut, 200),
    "no header": ("snapshot-1.header", remove, 0),
}


@pytest.mark.parametrize(("name", "damage", "place"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_snapshot_is_passed_over_for_the_one_before(
    name: str, damage: Callable[[Path, int], None], place: int, opened: Opened, tmp_path: Path
) -> None:
    take(opened(WORLD), 5, 10)
    assert sorted(opened(NEXT).find()) == [(1, 5), (1, 10)]

    damage(tmp_path / name, place)

    found = recall(opened(NEXT))
    if found.newest == (1, 10):  # only who reads the numbers sees what is wrong
        assert found.load((1, 10)) is None
    assert found.newest == (1, 5)
    restored = found.load((1, 5))
    assert restored is not None
    assert read_bits(restored) == read_bits(make_state(describe(), 5))


def test_snapshot_that_one_host_finds_damaged_is_used_by_none(opened: Opened, tmp_path: Path) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
        take(opened(WORLD, folder=folder), 5, 10)
    flip(tmp_path / "b" / "snapshot-1", 1000)

    def choose(peers: ProcessGroup) -> list[Any]:
        found = SnapshotRestore(opened(NEXT, folder=folders[peers.process]), describe(), programs(), peers)
        return [found.newest, found.load((1, 10)), found.newest]

    assert together(2, choose) == [[(1, 10), None, (1, 5)]] * 2


def test_a_full_volume_does_not_stop_training(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    snapshots = opened(WORLD)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        take(snapshots, 5, 10)
    assert [record.levelname for record in caplog.records if "no space" in record.message] == ["WARNING"]
    assert not opened(NEXT).find()

    for step in (15, 20):  # the first of them only makes the room that there is now
        snapshots.take(step, make_state(describe(), step))
    snapshots.wait()

    assert list(opened(NEXT).find()) == [(1, 20)]


def test_a_header_that_cannot_be_written_does_not_stop_training(opened: Opened, tmp_path: Path) -> None:
    snapshots = opened(WORLD)
    take(snapshots)
    (tmp_path / "snapshot-0.new").mkdir()

    snapshots.take(5, make_state(describe(), 5))
    snapshots.wait()

    assert (snapshots.newest, list(opened(NEXT).find())) == (0, [])


def test_a_host_without_a_volume_takes_none() -> None:
    described = describe()
    snapshots = Snapshots("", 5, WORLD, DATA, described, Shards(described))
    take(snapshots, 5)

    assert (snapshots.is_due(5), snapshots.newest, snapshots.find()) == (False, 0, {})


HOSTS = {
    "split inside a host": make_layout(devices_per_host=4, ici=AxisDegrees(fsdp=4)),
    "split over hosts": make_layout(devices_per_host=2, hosts_per_slice=4, ici=AxisDegrees(fsdp=4, tensor=2)),
    "copies on a host": make_layout(devices_per_host=4, hosts_per_slice=2, ici=AxisDegrees(data=4, fsdp=2)),
}


@pytest.mark.parametrize("changes", [{}, {"parallelism__shardOptimizerOverData": True}], ids=["copied", "spread"])
@pytest.mark.parametrize("layout", HOSTS.values(), ids=HOSTS.keys())
def test_no_host_needs_more_memory_than_planned(layout: Layout, changes: dict[str, Any]) -> None:
    spec = spec_with(**changes, model__embedDim=256, model__vocabSize=1024)
    devices = jax.devices()[: layout.devices_per_host]

    need = sum(shard.num_bytes for shard in Shards(describe(layout, spec), devices).local_shards.values())

    planned = snapshot_bytes(spec, layout)
    assert need <= planned
    assert need > planned - 2 * 2**20
