"""Initialization of a job with LoRA from the checkpoint of another one: base and adapters, of the same options only."""

import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.lora import merge
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, copy_to_bucket, new_root
from tests.support.trainer.shelf import at, read_record, step_path
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from tests.support.trainer.training import numpy_tree
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.initialize import InitialParams, load_initial_params
from trainingjob_trainer.checkpoint.manifest import write_integrity
from trainingjob_trainer.models.decoder import Params
from trainingjob_trainer.models.trainable import tensor_name
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.step import StepPrograms

ALONE = ProcessGroup(0, 1)
LORA: dict[str, Any] = {"rank": 2, "alpha": 6, "targets": ["*.attention.query", "*.mlp.down"]}
FACTOR = 3.0


class Job:
    """A job with LoRA. Its initial state has adapters with an effect."""

    def __init__(self, root: Path, seed: int, lora: dict[str, Any] | None = None, **changes: Any) -> None:
        section = None if lora is None else LORA | lora
        spec = make_spec(root, root, training__seed=seed, lora=section, **changes)
        layout = make_layout()
        self.config = make_config(spec, (layout,))
        self.steps = StepPrograms(self.config.spec, build_mesh(jax.devices()[: layout.num_devices], layout))
        self.state = jax.jit(
            self.steps.init, out_shardings=jax.tree.map(lambda leaf: leaf.sharding, self.steps.state_shapes)
        )()
        numbers = np.random.default_rng(seed)

        def fill(path: Any, leaf: jax.Array) -> jax.Array:
            if not tensor_name(path).endswith("_lora_b"):
                return leaf
            return jax.device_put(numbers.normal(0, 0.3, leaf.shape).astype(leaf.dtype), leaf.sharding)

        self.state = self.state._replace(params=jax.tree_util.tree_map_with_path(fill, self.state.params))

    def save(self, root: Path) -> None:
        events = AgentEvents(os.open(os.devnull, os.O_WRONLY))
        checkpoints = Checkpoints(str(root), self.config, make_world(1, 1), ALONE, "index", events)
        checkpoints.save(2, self.state)
        checkpoints.wait()

    def load(self) -> InitialParams:
        source = self.config.spec.checkpoint.initialize_from
        assert source
        return load_initial_params(source, self.steps.make_base(), ALONE, self.state.params)


def heir(root: Path, source: dict[str, Any] | None = None, **lora: Any) -> Job:
    """Return a job that starts from the checkpoint below a folder."""
    return Job(root / "heir", 7, lora, checkpoint__initializeFrom={"uri": str(root / "base")} | (source or {}))


def assert_equal(found: Params, expected: dict[str, Any]) -> None:
    for (path, leaf), want in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(np.asarray(leaf), want, err_msg=tensor_name(path))


@pytest.mark.thorough
@pytest.mark.parametrize("quantization", [None, "int8"])
def test_a_job_continues_with_base_and_adapters_of_another(quantization: str | None, tmp_path: Path) -> None:
    base = Job(tmp_path / "base", 5, {"baseQuantization": quantization})
    base.save(tmp_path / "base")
    job = heir(tmp_path, baseQuantization=quantization)

    found = job.load()

    assert_equal(found.params, numpy_tree(base.state.params))
    assert found.source == f"step 2 of {tmp_path / 'base'}"
    shapes = job.steps.state_shapes.params
    assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.sharding), found.params) == jax.tree.map(
        lambda leaf: (leaf.dtype, leaf.sharding), shapes
    )


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_job_continues_with_base_and_adapters_of_a_bucket(
    tmp_path: Path, scheme: str, object_servers: ObjectServers
) -> None:
    base = Job(tmp_path / "base", 5, {})
    base.save(tmp_path / "base")
    with object_servers.environment(scheme):
        uri = new_root(scheme)
        copy_to_bucket(tmp_path / "base", uri)

        found = heir(tmp_path, {"uri": uri}).load()

    assert_equal(found.params, numpy_tree(base.state.params))
    assert found.source == f"step 2 of {uri}"


@pytest.mark.thorough
def test_a_base_of_another_format_is_quantized(tmp_path: Path) -> None:
    base = Job(tmp_path / "base", 5, {})
    base.save(tmp_path / "base")

    found = numpy_tree(heir(tmp_path, baseQuantization="int8").load().params)

    before = numpy_tree(base.state.params)
    for one, other in zip(jax.tree.leaves(merge(found, FACTOR)), jax.tree.leaves(merge(before, FACTOR)), strict=True):
        assert np.abs(one - other).max() <= np.abs(other).max() / 254 * 1.001
    name = "query_lora_b"
    np.testing.assert_array_equal(found["layers"]["attention"][name], before["layers"]["attention"][name])


MISMATCHES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "another rank, alpha and target": (
        {},
        {"rank": 4, "alpha": 8, "targets": ["*.attention.query", "*.mlp.up"]},
        [
            "rank is 2, but `spec.lora.rank` is 4",
            "alpha is 6, but `spec.lora.alpha` is 8",
            "layers.attention.query_lora_a is 2x16x2, not 2x16x4",
            "layers.mlp.down_lora_a is 2x32x2, not not there",
            "layers.mlp.up_lora_b is not there, not 2x4x32",
        ],
    ),
    "another alpha alone": ({}, {"alpha": 7}, ["alpha is 6, but `spec.lora.alpha` is 7"]),
    "a base in int8": (
        {"baseQuantization": "int8"},
        {},
        ["its matrices are int8, but `spec.lora.baseQuantization` is not set"],
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("saved", "lora", "words"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_every_mismatch_is_reported_at_once(
    saved: dict[str, Any], lora: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    Job(tmp_path / "base", 5, saved).save(tmp_path / "base")

    with pytest.raises(TrainingError, match="holds the parameters of another model") as caught:
        heir(tmp_path, {"allowPartial": False}, **lora).load()

    assert (caught.value.reason, caught.value.path) == (FailureReason.CONFIG, "spec.lora")
    assert [one for one in words if one not in str(caught.value)] == []
    assert "_scale" not in str(caught.value)
    assert str(caught.value).endswith("The sections model and lora must be that of the job that saved the step.")


@pytest.mark.thorough
def test_adapters_are_never_left_out(tmp_path: Path) -> None:
    Job(tmp_path / "base", 5, {}).save(tmp_path / "base")

    with pytest.raises(TrainingError, match=r"layers\.mlp\.down_lora_a is 2x32x2, not not there"):
        heir(tmp_path, {"allowPartial": True}, targets=["*.attention.query"]).load()


@pytest.mark.thorough
def test_further_adapters_start_random_if_allowed(tmp_path: Path) -> None:
    base = Job(tmp_path / "base", 5, {"targets": ["*.attention.query"]})
    base.save(tmp_path / "base")
    job = heir(tmp_path, {"allowPartial": True})
    own = np.asarray(job.state.params["layers"]["mlp"]["down_lora_a"])

    found = job.load()

    np.testing.assert_array_equal(found.params["layers"]["mlp"]["down_lora_a"], own)
    assert "missing there, so they start random: layers.mlp.down_lora_a, layers.mlp.down_lora_b" in found.source


@pytest.mark.thorough
def test_an_alpha_that_was_not_recorded_is_reported(tmp_path: Path) -> None:
    Job(tmp_path / "base", 5, {}).save(tmp_path / "base")
    folder = step_path(tmp_path / "base", 2)
    write_integrity(at(folder), read_record(folder).model_copy(update={"lora": None}))

    found = heir(tmp_path).load()

    assert found.source.endswith("; an older trainer did not record the alpha of its adapters")


def test_two_sources_of_adapters_are_rejected(tmp_path: Path) -> None:
    Job(tmp_path / "base", 5, {}).save(tmp_path / "base")

    with pytest.raises(TrainingError, match=r"Remove spec\.checkpoint\.initializeFrom\.adapter to continue") as caught:
        heir(tmp_path, {"adapter": {"path": str(tmp_path / "adapter")}}).load()

    assert caught.value.path == "spec.checkpoint.initializeFrom.uri"
