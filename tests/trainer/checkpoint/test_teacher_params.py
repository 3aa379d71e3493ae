"""The parameters of a teacher: read from a checkpoint at each start, hashed, and compared with those of the state."""

import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, copy_to_bucket, new_root
from tests.support.trainer.saved_models import save_model
from tests.support.trainer.tiny import make_layout, make_spec
from tests.support.trainer.training import flat
from tests.trainer.checkpoint.test_initialize import ALONE
from tests.trainer.huggingface.test_published_params import edit as change_tensors
from trainingjob_api.base import AXES
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_api.teacher import describe_teacher
from trainingjob_trainer.checkpoint.teacher_params import load_teacher
from trainingjob_trainer.huggingface.weights_folder import open_weights
from trainingjob_trainer.models.decoder import split_model_of
from trainingjob_trainer.parallel.bit_sums import hash_arrays
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.state import State
from trainingjob_trainer.step import StepPrograms
from trainingjob_trainer.store.opening import open_store

MODEL = {"vocabSize": 272, "embedDim": 32, "mlpDim": 48, "numLayers": 2, "numHeads": 4, "headDim": 8}


def job(folder: Path, step: int = 1, uri: str = "", **model: Any) -> TrainingJobSpec:
    source = {"uri": uri or str(folder / "teacher"), "step": step}
    objective = {"type": "distill", "distill": {"teacher": {"model": MODEL | model, "initializeFrom": source}}}
    return TrainingJobSpec.model_validate(make_spec(folder / "run", folder, objective=objective))


def programs(spec: TrainingJobSpec, devices: int = 8, **ici: int) -> StepPrograms:
    layout = make_layout(devices_per_host=devices, ici=AxisDegrees(**ici), rows_per_shard=1)
    return StepPrograms(spec, build_mesh(jax.devices()[: layout.num_devices], layout))


def save_teacher(folder: Path, spec: TrainingJobSpec, *steps: int) -> None:
    """Save checkpoints of a job whose model is the teacher."""
    described = describe_teacher(spec)
    assert described
    save_model(folder / "teacher", described, *steps)


def load(spec: TrainingJobSpec, steps: StepPrograms, state: State) -> tuple[State, Any]:
    return load_teacher(spec, steps.teacher_shapes, state, ALONE)


def fresh(steps: StepPrograms) -> State:
    state: State = jax.jit(steps.init)()
    return state


@pytest.mark.thorough
def test_a_teacher_is_read_into_its_shards(tmp_path: Path) -> None:
    spec = job(tmp_path)
    save_teacher(tmp_path, spec, 1, 2)
    steps = programs(spec, fsdp=8)

    state, teacher = load(spec, steps, fresh(steps))

    described = describe_teacher(spec)
    assert described
    want = flat(split_model_of(described).init(1))
    found = flat(teacher)
    assert want.keys() == found.keys()
    assert all(np.array_equal(want[name], leaf) for name, leaf in found.items())
    shardings = (jax.tree.map(lambda leaf: leaf.sharding, tree) for tree in (teacher, steps.teacher_shapes))
    assert next(shardings) == next(shardings)
    assert state.teacher is not None
    assert int(state.teacher) > 0


@pytest.mark.thorough
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_teacher_in_a_bucket_is_that_of_the_folder(
    tmp_path: Path, scheme: str, object_servers: ObjectServers
) -> None:
    spec = job(tmp_path)
    save_teacher(tmp_path, spec, 1)
    steps = programs(spec, fsdp=8)
    _, want = load(spec, steps, fresh(steps))
    with object_servers.environment(scheme):
        uri = new_root(scheme)
        copy_to_bucket(tmp_path / "teacher", uri)

        _, found = load(job(tmp_path, uri=uri), steps, fresh(steps))

    for one, other in zip(jax.tree.leaves(want), jax.tree.leaves(found), strict=True):
        assert np.array_equal(one, other)


@pytest.mark.thorough
def test_the_hash_does_not_depend_on_the_mesh(tmp_path: Path) -> None:
    spec = job(tmp_path)
    save_teacher(tmp_path, spec, 1)
    wide, narrow = programs(spec, fsdp=8), programs(spec, data=2, fsdp=2, tensor=2)
    state, _ = load(spec, wide, fresh(wide))
    assert state.teacher is not None

    moved = fresh(narrow)._replace(teacher=jax.numpy.asarray(int(state.teacher), jax.numpy.uint32))
    again, _ = load(spec, narrow, moved)

    assert again.teacher is not None
    assert int(again.teacher) == int(state.teacher)


@pytest.mark.thorough
def test_another_teacher_is_refused(tmp_path: Path) -> None:
    spec = job(tmp_path)
    save_teacher(tmp_path, spec, 1, 2)
    steps = programs(spec, fsdp=8)
    state, _ = load(spec, steps, fresh(steps))

    with pytest.raises(TrainingError, match=r"must be those of the first start, and step 2 of .* has others") as error:
        load(job(tmp_path, step=2), steps, state)

    assert error.value.path == "spec.objective.distill.teacher.initializeFrom"


def test_the_hash_depends_on_each_number_and_on_the_order() -> None:
    one, two = (jax.device_put(np.full(4, value, np.float32), sharding()) for value in (1, 2))
    changed = jax.device_put(np.array([1, 1, 1, 1.0000001], np.float32), sharding())

    hashes = [int(hash_arrays(tree)) for tree in ({"a": one, "b": two}, {"a": two, "b": one}, {"a": changed, "b": two})]

    assert len(set(hashes)) == 3
    assert 0 not in hashes


def sharding() -> Any:
    layout = make_layout(devices_per_host=1, ici=AxisDegrees(), rows_per_shard=1)
    mesh = build_mesh(jax.devices()[:1], layout)
    assert mesh.axis_names == AXES
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())


def test_a_checkpoint_of_another_model_is_refused_with_the_fields_of_the_teacher(tmp_path: Path) -> None:
    save_teacher(tmp_path, job(tmp_path), 1)
    spec = job(tmp_path, numLayers=3, tieEmbeddings=True)
    steps = programs(spec, fsdp=8)

    with pytest.raises(TrainingError) as error:
        load(spec, steps, fresh(steps))

    assert "holds the parameters of another model" in str(error.value)
    assert "allowPartial" not in str(error.value)
    assert error.value.path == "spec.objective.distill.teacher.model"


def test_a_step_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    spec = job(tmp_path, step=9)
    save_teacher(tmp_path, spec, 1)
    steps = programs(spec, fsdp=8)

    with pytest.raises(TrainingError, match="no intact step 9") as error:
        load(spec, steps, fresh(steps))

    assert error.value.path == "spec.objective.distill.teacher.initializeFrom.step"


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    spec = job(tmp_path)
    source = {"huggingFace": {"path": str(tmp_path / "missing")}}
    objective = {"type": "distill", "distill": {"teacher": {"model": MODEL, "initializeFrom": source}}}
    published = TrainingJobSpec.model_validate(make_spec(tmp_path / "run", tmp_path, objective=objective))
    steps = programs(spec, fsdp=8)

    with pytest.raises(TrainingError) as error:
        load(published, steps, fresh(steps))

    assert error.value.path == "spec.objective.distill.teacher.initializeFrom.huggingFace.path"


def published(tmp_path: Path, folder: Path) -> TrainingJobSpec:
    """Return a job whose teacher is a published model."""
    model = Fixture("llama").model
    source = {"huggingFace": {"path": str(folder)}}
    section = model.model_dump(by_alias=True, exclude_defaults=True)
    objective = {"type": "distill", "distill": {"teacher": {"model": section, "initializeFrom": source}}}
    changes = {"objective": objective, "model__vocabSize": model.vocab_size}
    return TrainingJobSpec.model_validate(make_spec(tmp_path / "run", tmp_path, **changes))


@pytest.mark.thorough
def test_published_weights_are_a_teacher_and_leave_no_files(tmp_path: Path) -> None:
    folder = Fixture("llama").folder
    spec = published(tmp_path, folder)
    steps = programs(spec, devices=1)

    state, teacher = load(spec, steps, fresh(steps))

    table = open_weights(open_store(folder)).read("model.embed_tokens.weight", tuple((0, n) for n in table_of(teacher)))
    np.testing.assert_array_equal(np.asarray(teacher["embedding"]), np.asarray(table, np.float32))
    assert state.teacher is not None
    assert int(state.teacher) == int(hash_arrays(teacher))
    assert not (tmp_path / "run").exists(), "exports of the student keep nothing of the teacher"


def table_of(params: Any) -> tuple[int, ...]:
    shape: tuple[int, ...] = params["embedding"].shape
    return shape


def test_a_teacher_must_be_complete(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    shutil.copytree(Fixture("llama").folder, folder)
    change_tensors(folder, lambda tensors: tensors.pop("model.norm.weight"))
    spec = published(tmp_path, folder)
    steps = programs(spec, devices=1)

    with pytest.raises(TrainingError, match="is missing") as error:
        load(spec, steps, fresh(steps))

    assert "allowPartial" not in str(error.value)
    assert error.value.path == "spec.objective.distill.teacher.model"


def test_a_job_without_a_teacher_loads_nothing(tmp_path: Path) -> None:
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path / "run", tmp_path))
    steps = programs(spec, fsdp=8)
    state = fresh(steps)

    assert load(spec, steps, state) == (state, None)


def test_a_start_needs_the_same_stored_probabilities(tmp_path: Path) -> None:
    objective = {"type": "distill", "distill": {"probabilities": {"uri": "/shared/taught"}}}
    spec = TrainingJobSpec.model_validate(make_spec(tmp_path / "run", tmp_path, objective=objective))
    steps = programs(spec, fsdp=8)

    state, params = load_teacher(spec, steps.teacher_shapes, fresh(steps), ALONE, 7)
    with pytest.raises(TrainingError) as caught:
        load_teacher(spec, steps.teacher_shapes, state, ALONE, 8)

    assert state.teacher is not None
    assert (int(state.teacher), params) == (7, {})
    assert caught.value.path == "spec.objective.distill.probabilities.uri"
    assert "/shared/taught has others" in str(caught.value)
