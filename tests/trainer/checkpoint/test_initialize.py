"""Initialization from another job: the parameters of its newest complete step, resharded, of the same model only."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.trainer.crew import Crew, Trainer
from tests.support.trainer.shelf import at, read_record, step_path
from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from tests.support.trainer.training import spec_with
from trainingjob_agent.checkpoint_layout import MANIFEST_FILE
from trainingjob_agent.trainer_protocol import AgentEvent
from trainingjob_api.network.resolve import resolve
from trainingjob_api.protocol import MAX_MESSAGE, FailureReason
from trainingjob_api.spec.checkpoint import InitializeFrom
from trainingjob_api.world import RunConfig
from trainingjob_trainer.checkpoint.checkpoints import Checkpoints
from trainingjob_trainer.checkpoint.initial_state import make_initial_state
from trainingjob_trainer.checkpoint.initialize import InitialParams, load_initial_params
from trainingjob_trainer.checkpoint.manifest import write_integrity
from trainingjob_trainer.models.base_params import BaseParams
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.agent_events import AgentEvents
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.errors import TrainingError
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.state import State
from trainingjob_trainer.step import StepPrograms

ALONE = ProcessGroup(0, 1)


def place(value: Any, num_devices: int, *spec: str | None) -> jax.Array:
    mesh = Mesh(np.array(jax.devices()[:num_devices]), ("a",))
    return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))


def matrix(step: int) -> np.ndarray:
    return np.arange(64, dtype=np.float32).reshape(8, 8) + step


def save(root: Path, *steps: int, **layer: jax.Array) -> None:
    """Save steps of a model of one matrix, split over eight devices, and with other tensors of its layer."""
    checkpoints = Checkpoints(
        root,
        make_config(make_spec(root, root)),
        make_world(1, 1),
        ALONE,
        "index",
        AgentEvents(os.open(os.devnull, os.O_WRONLY)),
    )
    for step in steps:
        scalar = place(np.array(step, np.int32), 8)
        params = {"layers": {"w": place(matrix(step), 8, "a"), **layer}, "norm": place(np.ones(8, np.float32), 8)}
        checkpoints.save(step, State(scalar, params, {"m": place(matrix(0), 8)}, scalar, scalar))
        checkpoints.wait()


def wanted(**changes: Any) -> dict[str, Any]:
    """Return the description of the parameters of another world: of two devices, in half precision."""
    split = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("a",)), PartitionSpec(None, "a"))
    whole = NamedSharding(split.mesh, PartitionSpec())
    return {
        "layers": {"w": jax.ShapeDtypeStruct((8, 8), jax.numpy.bfloat16, sharding=split)},
        "norm": jax.ShapeDtypeStruct((8,), np.float32, sharding=whole),
    } | changes


def whole(shapes: dict[str, Any]) -> BaseParams:
    """Return parameters that are all loaded."""
    return BaseParams(resolve(spec_with().model), shapes, np.float32)


def fresh(**changes: Any) -> dict[str, Any]:
    """Return the random parameters of such a world."""
    return jax.tree.map(
        lambda leaf: jax.device_put(np.full(leaf.shape, 0.5, leaf.dtype), leaf.sharding), wanted(**changes)
    )


def take(root: Path, step: int | None = None, *, allow_partial: bool = False, **changes: Any) -> InitialParams:
    source = InitializeFrom(uri=str(root), step=step, allow_partial=allow_partial)
    return load_initial_params(source, whole(wanted(**changes)), ALONE, fresh(**changes))


def leaf(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32, sharding=wanted()["norm"].sharding)


def break_step(root: Path, step: int) -> None:
    saved = (one for one in step_path(root, step).rglob("*") if one.is_file() and one.name != MANIFEST_FILE)
    file = max(saved, key=lambda one: one.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def files(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def go_back(root: Path) -> None:
    """Make step 2 the newest of the lineage that a rollback began."""
    (root / "lineage-1").mkdir()
    source = step_path(root, 2)
    folder = source.rename(root / "lineage-1" / source.name)
    write_integrity(at(folder), read_record(folder).model_copy(update={"lineage": 1}))


CHOICES: dict[str, tuple[Callable[[Path], None], int | None, int]] = {
    "the newest one": (lambda root: None, None, 6),
    "the one that is named": (lambda root: None, 4, 4),
    "the newest one that is whole": (lambda root: break_step(root, 6), None, 4),
    "not one that was never finished": (lambda root: (step_path(root, 6) / MANIFEST_FILE).unlink(), None, 4),
    "the newest one after a rollback": (go_back, None, 2),
}


@pytest.mark.parametrize(("prepare", "step", "want"), CHOICES.values(), ids=CHOICES.keys())
def test_step_is_chosen_resharded_and_not_changed(
    prepare: Callable[[Path], None], step: int | None, want: int, tmp_path: Path
) -> None:
    save(tmp_path, 2, 4, 6)
    prepare(tmp_path)
    before = files(tmp_path)

    found = take(tmp_path, step)

    assert np.array_equal(found.params["layers"]["w"], matrix(want).astype(jax.numpy.bfloat16))
    assert found.params["layers"]["w"].sharding == wanted()["layers"]["w"].sharding
    assert found.source == f"step {want} of {tmp_path}"
    assert files(tmp_path) == before


ERRORS: dict[str, tuple[Callable[[Path], None], int | None, dict[str, Any], FailureReason, str, str]] = {
    "no folder": (
        lambda root: root.joinpath("lineage-0").rename(root / "away"),
        None,
        {},
        FailureReason.STORAGE,
        "spec.checkpoint.initializeFrom.uri",
        "holds no intact step of a TrainingJob",
    ),
    "no such step": (
        lambda root: None,
        3,
        {},
        FailureReason.STORAGE,
        "spec.checkpoint.initializeFrom.step",
        "holds no intact step 3 of",
    ),
    "the step that is named is damaged": (
        lambda root: break_step(root, 2),
        2,
        {},
        FailureReason.STORAGE,
        "spec.checkpoint.initializeFrom.step",
        "has changed since it was saved",
    ),
    "a folder that cannot be read": (
        lambda root: (root / "lineage-1").write_text(""),
        None,
        {},
        FailureReason.STORAGE,
        "spec.checkpoint.initializeFrom.uri",
        "failed: lineage-1 must be a folder itself, not a link or a file.",
    ),
    "another model": (
        lambda root: None,
        None,
        {"norm": leaf(4), "bias": leaf()},
        FailureReason.CONFIG,
        "spec.model",
        "another model: bias is not there, not a number; norm is 8, not 4. The section",
    ),
    "another model, which lacks some": (
        lambda root: None,
        None,
        {name: leaf(2, 3) for name in ("a", "b", "c", "d", "e")},
        FailureReason.CONFIG,
        "spec.checkpoint.initializeFrom.allowPartial",
        "another model: " + "; ".join(f"{name} is not there, not 2x3" for name in "abcde") + ". Set spec.checkpoint.",
    ),
}


@pytest.mark.parametrize(("prepare", "step", "changes", "reason", "path", "words"), ERRORS.values(), ids=ERRORS.keys())
def test_unusable_source_is_reported_at_its_field(
    prepare: Callable[[Path], None],
    step: int | None,
    changes: dict[str, Any],
    reason: FailureReason,
    path: str,
    words: str,
    tmp_path: Path,
) -> None:
    save(tmp_path, 2)
    prepare(tmp_path)

    with pytest.raises(TrainingError) as caught:
        take(tmp_path, step, **changes)

    assert (caught.value.reason, caught.value.path, caught.value.fatal) == (reason, path, True)
    assert words in str(caught.value)


def test_missing_parameters_are_initialized_randomly_if_allowed(tmp_path: Path) -> None:
    save(tmp_path, 2)
    more = {"layers": {"w": wanted()["layers"]["w"], "bias": leaf(8)}, "head": leaf(2, 3)}

    found = take(tmp_path, allow_partial=True, **more)

    assert np.array_equal(found.params["layers"]["w"], matrix(2).astype(jax.numpy.bfloat16))
    assert np.array_equal(found.params["norm"], np.ones(8))
    assert np.array_equal(found.params["head"], np.full((2, 3), 0.5))
    assert np.array_equal(found.params["layers"]["bias"], np.full(8, 0.5))
    assert jax.tree.map(lambda one: one.sharding, found.params) == jax.tree.map(
        lambda one: one.sharding, wanted(**more)
    )
    assert found.source == f"step 2 of {tmp_path}; missing there, so they start random: head, layers.bias"


def test_additional_parameters_are_omitted_if_allowed(tmp_path: Path) -> None:
    save(tmp_path, 2)
    source = InitializeFrom(uri=str(tmp_path), allow_partial=True)

    found = load_initial_params(source, whole({"norm": wanted()["norm"]}), ALONE, {"norm": fresh()["norm"]})

    assert list(found.params) == ["norm"]
    assert np.array_equal(found.params["norm"], np.ones(8))
    assert found.source == f"step 2 of {tmp_path}; not used: layers.w"


@pytest.mark.parametrize("allow_partial", [False, True])
def test_a_checkpoint_with_adapters_is_never_read_without_them(tmp_path: Path, *, allow_partial: bool) -> None:
    save(tmp_path, 2, w_lora_a=place(matrix(0), 8), w_lora_b=place(matrix(0), 8))

    with pytest.raises(TrainingError) as raised:
        take(tmp_path, allow_partial=allow_partial)

    assert str(raised.value) == (
        f"step 2 of {tmp_path} must be of a job without spec.lora, and holds 2 matrices of adapters, such as "
        "layers.w_lora_a. Write the merged model with `trainingjob export`, and name its folder in "
        "spec.checkpoint.initializeFrom.huggingFace.path."
    )
    assert raised.value.path == "spec.checkpoint.initializeFrom.uri"


def test_another_shape_is_never_allowed(tmp_path: Path) -> None:
    save(tmp_path, 2)
    before = fresh(norm=leaf(4), bias=leaf())

    with pytest.raises(TrainingError, match=r"another model: norm is 8, not 4\. The section model") as caught:
        load_initial_params(
            InitializeFrom(uri=str(tmp_path), allow_partial=True),
            whole(wanted(norm=leaf(4), bias=leaf())),
            ALONE,
            before,
        )

    assert caught.value.path == "spec.model"


def test_message_about_many_arrays_is_bounded(tmp_path: Path) -> None:
    save(tmp_path, 2)

    found = take(tmp_path, allow_partial=True, **{f"parameter-{number}": leaf() for number in range(200)})

    assert len(found.source) == MAX_MESSAGE
    assert found.source.endswith("…")


@pytest.mark.slow
def test_job_begins_with_the_parameters_of_another_and_a_new_state(
    crew: Crew, tmp_path: Path, text: Path, programs: Path
) -> None:
    held_out = [{"name": "held", "path": str(text), "everySteps": 100, "numBatches": 2}]

    def train(name: str, num_processes: int, **changes: Any) -> list[Trainer]:
        config = make_config(make_spec(tmp_path / name / "run", text, evaluation=held_out, **changes))
        trainers = crew.start(config, make_world(1, num_processes), programs)
        for trainer in trainers:
            assert trainer.wait_for_end() == 0, trainer.tell_logs()
        return trainers

    def evaluated(trainer: Trainer) -> float:
        return [event.progress for event in trainer.events if event.progress][-1].evaluations["held"]

    (base, *_) = train("base", 1)
    heirs = train(
        "heir",
        2,
        training__steps=1,
        optimizer__learningRate=1e-12,
        checkpoint__initializeFrom={"uri": str(tmp_path / "base/run")},
    )

    for heir in heirs:
        assert [event.initialized_from for event in heir.events if event.initialized_from] == [
            f"step 6 of {tmp_path / 'base/run'}"
        ]
        assert (heir.restored, list(heir.losses)) == (0, [1])
        assert evaluated(heir) == pytest.approx(evaluated(base), abs=1e-5)
        assert heir.losses[1] != base.losses[1]


@pytest.mark.thorough
def test_parameters_are_of_the_source_and_all_else_of_a_fresh_job(tmp_path: Path) -> None:
    layout = make_layout()
    mesh = build_mesh(jax.devices()[: layout.num_devices], layout)

    def open_job(**changes: Any) -> tuple[RunConfig, StepPrograms, CompileCache]:
        config = make_config(make_spec(tmp_path / "base", tmp_path, **changes), (layout,))
        return config, StepPrograms(config.spec, mesh), CompileCache("", tmp_path, config, layout, ALONE)

    config, steps, programs = open_job(model__tieEmbeddings=True)
    base = steps.compile_init(programs)()
    log = tmp_path / "events"
    with log.open("wb", buffering=0) as file:
        events = AgentEvents(file.fileno())
        checkpoints = Checkpoints(tmp_path / "base", config, make_world(1, 1), ALONE, "index", events)
        checkpoints.save(2, base)
        checkpoints.wait()
        source = {"uri": str(tmp_path / "base"), "allowPartial": True}
        config, steps, programs = open_job(
            model__tieEmbeddings=False,
            training__seed=7,
            checkpoint__initializeFrom=source,
            optimizer__average={},
            objective={"type": "dpo"},
        )
        fresh = steps.compile_init(programs)()

        begun = make_initial_state(config.spec, steps, programs, ALONE, events)

    saved = {name_leaf(path): leaf for path, leaf in jax.tree.leaves_with_path(base.params)}
    lacks = []
    for (path, seen), own in zip(jax.tree.leaves_with_path(begun.params), jax.tree.leaves(fresh.params), strict=True):
        name = name_leaf(path)
        assert np.array_equal(seen, saved.get(name, own)), name
        if name in saved:
            assert name.endswith(("scale", "norm")) or not np.array_equal(seen, own), "another seed"
        else:
            lacks.append(name)
    assert jax.tree.all(jax.tree.map(np.array_equal, begun.average, begun.params))
    assert jax.tree.all(jax.tree.map(np.array_equal, begun.reference, begun.params))
    rest = (one._replace(params=(), average=None, reference=None) for one in (begun, fresh))
    assert jax.tree.all(jax.tree.map(np.array_equal, *rest))
    (reported,) = [
        event.initialized_from
        for event in map(AgentEvent.model_validate_json, log.read_text().splitlines())
        if event.initialized_from
    ]
    assert lacks
    assert reported == f"step 2 of {tmp_path / 'base'}; missing there, so they start random: {', '.join(lacks)}"


def name_leaf(path: Any) -> str:
    return str(jax.tree_util.keystr(path, simple=True, separator="."))
