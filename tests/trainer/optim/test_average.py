"""The moving average of the trained tensors: its formula, its start, and who uses it."""

from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.tiny import make_config
from tests.support.trainer.training import ONE, Run, check_restored, flat, losses, save_and_restore, spec_with
from tests.trainer.test_step import LAYOUTS, ask
from trainingjob_api.optim import AVERAGE
from trainingjob_trainer.checkpoint.formats.saved_arrays import SavedParams
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import copy_params, tensor_name
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State

DECAY = 0.25
TRAINED: dict[str, Any] = {"optimizer__average": {"decay": DECAY}, "optimizer__learningRate": 0.01}
LORA: dict[str, Any] = {"lora": {"rank": 2, "alpha": 4, "targets": ["*.attention.query"]}}


def read_params(run: Run, folder: Path) -> Params:
    """Return the parameters that evaluations use."""
    config = make_config(run.spec.model_dump(by_alias=True, mode="json"), (ONE,))
    programs = CompileCache("", folder, config, ONE, ProcessGroup(0, 1))
    return run.steps.compile_average(programs)(run.state)


def test_an_average_has_the_numbers_of_its_formula() -> None:
    run = Run(spec_with(**TRAINED), ONE)
    want = flat(run.state.params)

    for step in range(1, 5):
        list(run.train(1))
        decay = min(DECAY, (1 + step) / (10 + step))
        want = {name: decay * want[name] + (1 - decay) * new for name, new in flat(run.state.params).items()}
        got = flat(run.state.average)
        assert all(np.allclose(got[name], want[name], atol=1e-6) for name in want)
    assert not all(np.allclose(got[name], new, atol=1e-6) for name, new in flat(run.state.params).items())


def test_training_does_not_depend_on_its_average() -> None:
    plain = TRAINED | {"optimizer__average": None}

    assert losses(spec_with(**TRAINED), ONE) == losses(spec_with(**plain), ONE)


def test_a_skipped_update_does_not_move_the_average() -> None:
    run = Run(spec_with(**TRAINED), LAYOUTS["data 8"])
    list(run.train(1))
    before = flat(run.state.average)

    state, measures = run.step(run.state, run.batch(2), ask(run, 0, 0, 0, 4, 0, 0, 0, 0))

    assert int(measures.skipped) == 1
    assert all(np.array_equal(before[name], after) for name, after in flat(state.average).items())


@pytest.mark.parametrize(
    ("layout", "changes"),
    [
        ("data 2 over slices, fsdp 4", {}),
        ("2 stages, fsdp 2, tensor 2, 4 microbatches", {}),
        ("data 8", {"parallelism__shardOptimizerOverData": True}),
    ],
)
def test_an_average_does_not_depend_on_the_mesh(layout: str, changes: dict[str, Any]) -> None:
    one, other = Run(spec_with(**TRAINED), ONE), Run(spec_with(**TRAINED, **changes), LAYOUTS[layout])

    list(one.train(3))
    list(other.train(3))

    want, got = flat(one.state.average), flat(other.state.average)
    assert all(np.allclose(got[name], want[name], atol=1e-4) for name in want)
    moments = other.state.opt[1].mu
    assert jax.tree.map(lambda leaf: leaf.sharding.spec, other.state.average) == jax.tree.map(
        lambda leaf: leaf.sharding.spec, moments
    )


@pytest.mark.thorough
def test_evaluations_use_the_average_in_the_format_and_the_sharding_of_the_parameters(tmp_path: Path) -> None:
    run = Run(
        spec_with(**TRAINED, precision__params="bfloat16", parallelism__shardOptimizerOverData=True), LAYOUTS["data 8"]
    )
    list(run.train(2))

    params = read_params(run, tmp_path)

    assert {leaf.dtype.name for leaf in jax.tree.leaves(run.state.average)} == {AVERAGE.dtype}
    for got, stored, average in zip(*map(jax.tree.leaves, (params, run.state.params, run.state.average)), strict=True):
        assert (got.dtype, got.sharding) == (stored.dtype, stored.sharding)
        np.testing.assert_array_equal(got, average.astype(stored.dtype))


def test_evaluations_of_a_job_without_an_average_use_the_parameters(tmp_path: Path) -> None:
    run = Run(spec_with(), ONE)

    assert read_params(run, tmp_path) is run.state.params
    assert run.state.average is None


def test_the_average_of_adapters_goes_with_the_frozen_matrices(tmp_path: Path) -> None:
    run = Run(spec_with(**TRAINED, **LORA), ONE)
    list(run.train(2))

    params, averaged, stored = read_params(run, tmp_path), names(run.state.average), flat(run.state.params)

    assert len(averaged) == 2
    assert all(name.endswith(("_lora_a", "_lora_b")) for name in averaged)
    changed = {name for name, one in flat(params).items() if not np.array_equal(one, stored[name])}
    assert {name.replace("']['", ".").strip("[']") for name in changed} == averaged


def names(tree: Any) -> set[str]:
    return {tensor_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)}


def test_a_checkpoint_restores_the_average(tmp_path: Path) -> None:
    check_restored(tmp_path, Run(spec_with(**TRAINED), LAYOUTS["data 8"]))


@pytest.mark.thorough
def test_a_checkpoint_without_an_average_starts_one_as_a_copy(tmp_path: Path) -> None:
    zero = {"parallelism__shardOptimizerOverData": True}
    plain, run = Run(spec_with(**zero), LAYOUTS["data 8"]), Run(spec_with(**TRAINED, **zero), LAYOUTS["data 8"])
    list(plain.train(2))

    restored = save_and_restore(tmp_path, plain.state, run.steps.state_shapes)

    check_copy(restored, run)
    run.state = restored
    list(run.train(1))  # it donates both
    assert int(run.state.step) == 3


def test_an_average_of_another_checkpoint_is_ignored(tmp_path: Path) -> None:
    plain, run = Run(spec_with(), ONE), Run(spec_with(**TRAINED), ONE)
    list(run.train(2))

    restored = save_and_restore(tmp_path, run.state, plain.steps.state_shapes)

    assert restored.average is None
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, restored.params, run.state.params)))


def test_an_average_starts_with_the_trained_parameters() -> None:
    run = Run(spec_with(**TRAINED, **LORA), ONE)
    average = copy_params(run.steps.state_shapes.average, run.state.params)

    check_copy(run.state._replace(average=average), run)


def check_copy(state: State, run: Run) -> None:
    """Check that an average equals the parameters, with the shardings of the state."""
    params = {name: leaf for name, leaf in flat(state.params).items() if name in flat(state.average)}
    assert params.keys() == flat(state.average).keys()
    assert all(np.array_equal(leaf, params[name]) for name, leaf in flat(state.average).items())
    described = run.steps.state_shapes.average
    assert jax.tree.map(lambda leaf: leaf.sharding, state.average) == jax.tree.map(
        lambda leaf: leaf.sharding, described
    )


def test_exports_of_a_checkpoint_have_the_average_and_the_frozen_matrices(tmp_path: Path) -> None:
    run = Run(spec_with(**TRAINED, **LORA), ONE)
    list(run.train(2))
    save_and_restore(tmp_path, run.state, run.steps.state_shapes)
    (folder,) = (tmp_path / "lineage-0").iterdir()
    leaves = [*jax.tree_util.tree_leaves_with_path(run.state.params)]
    want = {
        tensor_name(path): leaf for path, leaf in [*leaves, *jax.tree_util.tree_leaves_with_path(run.state.average)]
    }

    saved = SavedParams(str(folder))

    assert len(want) == len(leaves)
    for name, leaf in want.items():
        np.testing.assert_array_equal(saved.read(name, tuple((0, size) for size in leaf.shape)), leaf)
    assert saved.shape("no.such.tensor") is None
