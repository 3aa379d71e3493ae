"""Silent corruption: a flipped bit is found, and the device that holds it named."""

from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.cases import each
from tests.support.trainer.crew import Crew
from tests.support.trainer.meeting import renumber
from tests.support.trainer.tiny import make_layout, make_world
from tests.support.trainer.training import Run, spec_with
from tests.trainer.snapshots.test_snapshotter import describe, make_state, programs
from tests.trainer.test_main import make
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.world import Layout
from trainingjob_trainer.monitoring.bad_steps import BadStepError
from trainingjob_trainer.monitoring.replica_check import (
    Mismatch,
    ReplicaCheck,
    compile_bit_sums,
    find_mismatch,
    mismatch_error,
)
from trainingjob_trainer.runtime.failure_records import failure_record as explain_error
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.snapshots.state_shards import Shards
from trainingjob_trainer.state import State

FOUR = make_layout(num_slices=4, ici=AxisDegrees(fsdp=2), dcn=AxisDegrees(data=4), rows_per_shard=1)
ALONE = ProcessGroup(0, 1)
TWO = make_layout(num_slices=2, devices_per_host=4, ici=AxisDegrees(fsdp=4), dcn=AxisDegrees(data=2), rows_per_shard=1)


@cache
def sums_of(layout: Layout) -> Any:
    return compile_bit_sums(programs(layout), describe(layout))


def groups_of(described: State) -> list[tuple[int, str, tuple[int, ...]]]:
    places = {device: place for place, device in enumerate(jax.tree.leaves(described)[0].sharding.mesh.devices.flat)}
    return [(one.leaf, one.name, tuple(places[device] for device in one.devices)) for one in Shards(described).all]


def flip(state: State, leaf: int, place: int, byte: int, bit: int) -> State:
    """Return a state of which one device holds one other bit."""
    leaves, tree = jax.tree.flatten(state)
    array = leaves[leaf]
    device = list(array.sharding.mesh.devices.flat)[place]
    pieces = []
    for piece in array.addressable_shards:
        numbers = np.array(piece.data)
        if piece.device == device:
            numbers.reshape(-1).view(np.uint8)[byte % numbers.nbytes] ^= np.uint8(1 << bit)
        pieces.append(jax.device_put(numbers, piece.device))
    leaves[leaf] = jax.make_array_from_single_device_arrays(array.shape, array.sharding, pieces)
    changed: State = jax.tree.unflatten(tree, leaves)
    return changed


def is_split(described: State, leaf: int) -> bool:
    return not jax.tree.leaves(described)[leaf].sharding.is_fully_replicated


def test_a_flipped_bit_is_found_and_its_device_named() -> None:
    described = describe(FOUR)
    state = make_state(described, 3)
    groups = groups_of(described)
    random = np.random.default_rng(0)
    right = 0
    assert find_mismatch(np.asarray(sums_of(FOUR)(state)), groups) is None

    for _ in range(20):
        leaf, place = int(random.integers(len(jax.tree.leaves(state)))), int(random.integers(8))
        changed = flip(state, leaf, place, int(random.integers(2**20)), int(random.integers(8)))
        odd = find_mismatch(np.asarray(sums_of(FOUR)(changed)), groups)
        right += odd is not None and (odd.positions, odd.has_majority) == (frozenset({place}), True)

    assert right == 20


def test_bits_that_are_flipped_twice_do_not_cancel() -> None:
    described = describe(FOUR)
    state = jax.tree.map(lambda leaf: leaf * 0, make_state(described, 3))
    leaf = next(leaf for leaf in range(len(jax.tree.leaves(state))) if is_split(described, leaf))

    for first, second in (((3, 7), (7, 7)), ((2, 6), (6, 6))):
        changed = flip(flip(state, leaf, 5, *first), leaf, 5, *second)  # the same bit of two elements
        odd = find_mismatch(np.asarray(sums_of(FOUR)(changed)), groups_of(described))

        assert odd is not None
        assert (odd.positions, odd.has_majority) == (frozenset({5}), True)


def test_both_of_two_different_replicas_are_reported() -> None:
    described = describe(TWO)
    state = make_state(described, 3)
    leaf = next(leaf for leaf in range(len(jax.tree.leaves(state))) if is_split(described, leaf))

    odd = find_mismatch(np.asarray(sums_of(TWO)(flip(state, leaf, 6, 5, 7))), groups_of(described))

    assert odd is not None
    assert (odd.positions, odd.has_majority) == (frozenset({2, 6}), False)


def test_corrupted_replica_stays_different_while_training_continues() -> None:
    run = Run(spec_with(), FOUR)
    next(run.train(1))
    leaf = next(place for place, one in enumerate(jax.tree.leaves(run.state)) if one.ndim > 1)
    run.state = flip(run.state, leaf, 5, 2, 6)  # a high bit of a mantissa

    next(run.train(1))

    odd = find_mismatch(np.asarray(sums_of(FOUR)(run.state)), groups_of(describe(FOUR)))
    assert odd is not None
    assert (odd.positions, odd.has_majority) == (frozenset({5}), True)


HEALTHY = {"four replicas": FOUR} | {
    name: LAYOUTS[name]
    for name in (
        "data 2, fsdp 2, tensor 2, accumulation 2",
        "data 2 over slices, fsdp 2, context 2",
        "2 stages, fsdp 2, tensor 2, 4 microbatches",
    )
}


@each("layout", HEALTHY)
def test_healthy_training_never_differs(layout: Layout) -> None:
    run = Run(spec_with(), layout)
    for _ in run.train():
        assert find_mismatch(np.asarray(sums_of(layout)(run.state)), groups_of(describe(layout))) is None


def replicas(every: int | None, peers: ProcessGroup = ALONE) -> ReplicaCheck:
    described = describe(FOUR)
    world = make_world(1, peers.num_processes)
    return ReplicaCheck(every, world, peers, described, Shards(described).all, programs(FOUR))


def test_replicas_are_compared_at_an_interval_and_at_any_step_that_is_kept() -> None:
    watch = replicas(4)
    state = make_state(describe(FOUR), 1)
    broken = flip(state, 1, 3, 0, 0)

    watch.check(4, state)
    for step in (5, 8):
        with pytest.raises(
            BadStepError, match=rf"at step {step} host 0 of slice 0 \(device 3\) held different bits of"
        ):
            watch.check(step, broken)
    assert [watch.is_due(step) for step in (3, 4, 5, 8)] == [False, True, False, True]


def test_a_device_s_host_is_found_where_the_runtime_counts_its_processes_otherwise() -> None:
    broken = flip(make_state(describe(FOUR), 1), 1, 3, 0, 0)
    owner, other = (replicas(4, renumber(ProcessGroup(process, 2), (1, 0))) for process in (1, 0))

    with pytest.raises(BadStepError, match=r"at step 4 host 0 of slice 1 \(device 3\) held different bits of") as own:
        owner.check(4, broken)
    with pytest.raises(
        BadStepError, match=r"at step 4 host 0 of slice 1 \(device 3\) held different bits of"
    ) as anothers:
        other.check(4, broken)
    assert (own.value.reason, anothers.value.reason) == (FailureReason.CORRUPTION, FailureReason.PEER)


def test_replicas_are_not_compared_unless_enabled() -> None:
    watch = replicas(None)

    watch.check(5, flip(make_state(describe(FOUR), 1), 1, 3, 0, 0))
    assert not watch.is_due(5)


SUMS: dict[str, tuple[list[list[int]], tuple[int, ...], bool | None]] = {
    "all agree": ([[1, 2], [1, 2], [1, 2], [1, 2]], (), None),
    "one differs from most": ([[1, 2], [1, 2], [9, 2], [1, 2]], (2,), True),
    "two differ from most, in two arrays": ([[1, 2], [1, 9], [9, 2], [1, 2]], (1, 2), True),
    "all that differ in several arrays": ([[1, 2], [1, 2], [9, 9], [1, 2]], (2,), True),
    "two of four": ([[1, 2], [1, 2], [9, 2], [9, 2]], (0, 1, 2, 3), False),
    "each differs": ([[1, 2], [3, 2], [9, 2], [7, 2]], (0, 1, 2, 3), False),
    "one array tells, another does not": ([[1, 2], [1, 2], [9, 8], [1, 8]], (2,), True),
}


@pytest.mark.parametrize(("sums", "places", "certain"), SUMS.values(), ids=SUMS.keys())
def test_differing_replicas(sums: list[list[int]], places: tuple[int, ...], certain: bool | None) -> None:
    odd = find_mismatch(np.array(sums, np.uint32), [(leaf, f"array {leaf}", (0, 1, 2, 3)) for leaf in (0, 1)])

    assert (odd.positions, odd.has_majority) == (frozenset(places), certain) if odd else certain is None


WORLD = make_world(3, 2)
OWNERS = [(0, 0), (0, 1), (1, 0), (1, 1)]
TOLD: dict[str, tuple[Mismatch, int, tuple[FailureReason, bool], str]] = {
    "one's own device": (
        Mismatch(frozenset({3}), has_majority=True, shard_name="w"),
        1,
        (FailureReason.CORRUPTION, True),
        "at step 7 host 0 of slice 1 (device 1) held different bits of w than the majority",
    ),
    "another host's": (
        Mismatch(frozenset({3}), has_majority=True, shard_name="w"),
        0,
        (FailureReason.PEER, True),
        "at step 7 host 0 of slice 1 (device 1) held different bits of the state",
    ),
    "two hosts, and nobody knows which": (
        Mismatch(frozenset({1, 3}), has_majority=False, shard_name="w"),
        0,
        (FailureReason.CORRUPTION, False),
        (
            "at step 7 these held different bits of w, without a majority that is right: "
            "host 0 of slice 0 (device 1), host 0 of slice 1 (device 1)"
        ),
    ),
    "two devices of one host": (
        Mismatch(frozenset({2, 3}), has_majority=False, shard_name="w"),
        1,
        (FailureReason.CORRUPTION, True),
        (
            "at step 7 these held different bits of w, without a majority that is right: "
            "host 0 of slice 1 (device 0 and 1)"
        ),
    ),
}


@pytest.mark.parametrize(("odd", "process", "want", "words"), TOLD.values(), ids=TOLD.keys())
def test_report_of_each_process(odd: Mismatch, process: int, want: tuple[FailureReason, bool], words: str) -> None:
    failure = explain_error(mismatch_error(7, odd, OWNERS, WORLD, process), step=7)

    assert (failure.reason, failure.is_host_known, failure.fatal) == (*want, False)
    assert failure.message.partition(". The memory")[0] == words


@pytest.mark.slow
def test_a_world_that_compares_its_replicas_trains_to_the_end(crew: Crew, text: Path, tmp_path: Path) -> None:
    config = make(tmp_path / "shared/checkpoints", text, protection__compareReplicas={"everySteps": 3})

    trainers = crew.start(config, make_world(1, 2), tmp_path / "programs")

    for trainer in trainers:
        assert trainer.wait_for_end() == 0, trainer.tell_logs()
        assert trainer.committed == [2, 4, 6], trainer.tell_logs()
