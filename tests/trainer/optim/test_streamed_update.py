"""An update with optimizer state in host memory: its numbers are those of an update on the device.

CPU devices have memory of the kind `pinned_host` too, so that the programs are those of an accelerator.
"""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.training import ONE, Run, check_restored, losses, spec_with
from tests.trainer.snapshots.test_snapshotter import programs
from tests.trainer.test_step import LAYOUTS
from trainingjob_api.optimizer_memory import OptimizerMemory, choose_optimizer_memory
from trainingjob_trainer.monitoring.replica_check import compile_bit_sums
from trainingjob_trainer.optim import slot_paths
from trainingjob_trainer.optim.slot_paths import find_tensor_name
from trainingjob_trainer.parallel.host_memory import is_on_host
from trainingjob_trainer.snapshots.snapshot_restore import assemble, broadcast_shards
from trainingjob_trainer.snapshots.state_shards import Shards

OFFLOAD: dict[str, Any] = {"memory__offload": ["optimizer"]}
AVERAGE: dict[str, Any] = {"optimizer__average": {"decay": 0.9}}
OVER_DATA: dict[str, Any] = {"parallelism__shardOptimizerOverData": True}
STAGES = "2 stages, fsdp 2, tensor 2, 4 microbatches"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "adamw, one device": ("", {}),
    "muon, mesh": ("data 2, fsdp 2, tensor 2, accumulation 2", {"optimizer__type": "muon"}),
    "adafactor": ("", {"optimizer__type": "adafactor", "optimizer__adafactor": {"minFactoredSize": 64}}),
    "average, stages": (STAGES, AVERAGE),
    "average, optimizer over data": ("data 8", {**AVERAGE, **OVER_DATA}),
}


@pytest.fixture(autouse=True)
def with_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def choose(spec: Any) -> OptimizerMemory:
        return OptimizerMemory("host" if spec.memory.offloads_optimizer else "device", "")

    monkeypatch.setattr(slot_paths, "choose_optimizer_memory", choose)


def layout_of(name: str) -> Any:
    return LAYOUTS[name] if name else ONE


@pytest.mark.thorough
@pytest.mark.parametrize(("layout", "changes"), CASES.values(), ids=CASES.keys())
def test_the_loss_curve_is_that_of_state_on_the_device(layout: str, changes: dict[str, Any]) -> None:
    curve = losses(spec_with(**changes), layout_of(layout))

    assert losses(spec_with(**changes, **OFFLOAD), layout_of(layout)) == pytest.approx(curve, abs=1e-5)


def test_slots_of_matrices_stay_on_the_host() -> None:
    run = Run(spec_with(**AVERAGE, **OFFLOAD), ONE)
    list(run.train(1))
    matrices = {tensor.name for tensor in run.steps._model.network.tensors if tensor.is_matrix}

    for path, leaf in jax.tree_util.tree_leaves_with_path(run.state.slots):
        assert is_on_host(leaf) == (find_tensor_name(path) in matrices), path
    assert not any(map(is_on_host, jax.tree.leaves(run.state.params)))


@pytest.mark.thorough
def test_norms_are_those_of_state_on_the_device() -> None:
    measured = []
    for changes in ({}, OFFLOAD):
        run = Run(spec_with(**changes), ONE)
        step = jax.jit(partial(run.steps.train, measures_norms=True))
        measured.append(step(run.state, run.batch(1), run.controls())[1].norms)

    assert measured[1].keys() == measured[0].keys()
    for name, norm in measured[1].items():
        np.testing.assert_allclose(norm, measured[0][name], rtol=1e-5, err_msg=name)


@pytest.mark.thorough
def test_a_checkpoint_restores_slots_to_the_host(tmp_path: Path) -> None:
    run = Run(spec_with(**AVERAGE, **OFFLOAD), LAYOUTS[STAGES])
    restored = check_restored(tmp_path, run)

    kinds = [leaf.sharding.memory_kind for leaf in jax.tree.leaves(restored)]
    assert kinds == [leaf.sharding.memory_kind for leaf in jax.tree.leaves(run.state)]


@pytest.mark.thorough
def test_snapshots_and_replica_checks_read_the_host() -> None:
    """The state of one replica reaches all, on the host too, and the sums of bits see its replicas."""
    name = "data 2, fsdp 2, tensor 2, accumulation 2"
    run = Run(spec_with(**OFFLOAD), LAYOUTS[name])
    list(run.train(1))
    described, shards = run.steps.state_shapes, Shards(run.steps.state_shapes)
    held = {
        number: np.asarray(replica)
        for number, (_, replica) in zip(shards.local_shards, shards.local_arrays(run.state), strict=True)
    }

    given = assemble(shards, described, held, set(held))
    restored = broadcast_shards(programs(LAYOUTS[name]), described, given)

    for ours, theirs in zip(jax.tree.leaves(restored), jax.tree.leaves(run.state), strict=True):
        assert is_on_host(ours) == is_on_host(theirs)
        np.testing.assert_array_equal(ours, theirs)
    sums = np.asarray(compile_bit_sums(programs(LAYOUTS[name]), described)(run.state))
    for shard in shards.all:
        devices = [device.id for device in shard.devices]
        assert len({int(sums[device, shard.leaf]) for device in devices}) == 1, shard.name


def test_the_average_is_read_from_the_host() -> None:
    run = Run(spec_with(**AVERAGE, **OFFLOAD), ONE)
    list(run.train(2))

    read = run.steps.compile_average(programs(ONE))(run.state)

    for ours, theirs in zip(jax.tree.leaves(read), jax.tree.leaves(run.state.average), strict=True):
        assert not is_on_host(ours)
        np.testing.assert_array_equal(ours, theirs)


def test_cpu_devices_keep_the_state() -> None:
    assert choose_optimizer_memory(spec_with(**OFFLOAD)).name == "device"
