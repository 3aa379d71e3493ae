"""Compiled programs: kept, found again, handed to others, and never trusted blindly."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.trainer.cases import each
from tests.support.trainer.meeting import together
from tests.support.trainer.tiny import SECRET, make_config, make_layout, make_spec
from tests.support.trainer.training import Run
from trainingjob_api.spec.parallelism import AxisDegrees
from trainingjob_trainer.runtime.compile_cache import SHARED_FOLDER, CompileCache
from trainingjob_trainer.runtime.compile_cache_key import compile_cache_key
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.posix import PosixStore


def double(x: jax.Array) -> jax.Array:
    return 2 * x


def everywhere() -> NamedSharding:
    """Return a sharding over all devices, as a world's programs have."""
    return NamedSharding(Mesh(np.array(jax.devices()), "x"), PartitionSpec())


@pytest.fixture(autouse=True)
def _heard(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def build(
    folder: Path | str, root: Path, peers: ProcessGroup | None = None, secret: str = SECRET, **changes: Any
) -> jax.Array:
    config = make_config(make_spec(root, root, **changes))
    programs = CompileCache(str(folder), root, config, make_layout(), peers or ProcessGroup(0, 1), secret)
    argument = jax.device_put(jnp.arange(4.0), everywhere())
    program = programs.compile_or_load("double", double, (argument,), 0)
    result: jax.Array = program(argument)
    assert result.tolist() == [0.0, 2.0, 4.0, 6.0]
    return result


def count(caplog: pytest.LogCaptureFixture, what: str) -> int:
    return sum(what in message for message in caplog.messages)


def test_a_program_is_compiled_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path / "kept", tmp_path)
    build(tmp_path / "kept", tmp_path)

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (1, 1)


def begin(folder: Path | str, root: Path) -> tuple[CompileCache, jax.Array]:
    """Begin to load a program, and return what builds it and what it takes."""
    programs = CompileCache(
        str(folder), root, make_config(make_spec(root, root)), make_layout(), ProcessGroup(0, 1), SECRET
    )
    argument = jax.device_put(jnp.arange(4.0), everywhere())
    programs.begin_loading("double", (argument,), 0)
    return programs, argument


def test_a_program_whose_loading_was_begun_is_not_read_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "kept", tmp_path)
    reads: list[str] = []
    read = PosixStore.read
    monkeypatch.setattr(PosixStore, "read", lambda store, name, most: (reads.append(name), read(store, name, most))[1])

    programs, argument = begin(tmp_path / "kept", tmp_path)
    result = programs.compile_or_load("double", double, (argument,), 0)(argument)

    assert result.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert len([name for name in reads if name.endswith(".program")]) == 1
    assert count(caplog, "loaded a compiled program") == 1


@pytest.mark.parametrize("folder", ["kept", ""])
def test_program_whose_load_failed_is_compiled(tmp_path: Path, caplog: pytest.LogCaptureFixture, folder: str) -> None:
    programs, argument = begin(tmp_path / folder if folder else "", tmp_path)

    result = programs.compile_or_load("double", double, (argument,), 0)(argument)

    assert result.tolist() == [0.0, 2.0, 4.0, 6.0]
    assert count(caplog, "compiled a program") == 1


def test_nothing_is_kept_where_the_cache_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build("", tmp_path)
    build("", tmp_path)

    assert count(caplog, "compiled a program") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("is_in_order", "times"), [(True, 1), (False, 2)])
def test_a_program_whose_data_leave_the_order_of_collectives_open_is_compiled_each_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_in_order: bool, times: int
) -> None:
    """Devices that load it may meet in different sums, which ends them."""
    mesh = Mesh(np.array(jax.devices()), "x")
    argument = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, PartitionSpec("x")))

    def sums(x: jax.Array) -> jax.Array:
        looped, _ = jax.lax.scan(lambda total, _: (jax.lax.psum(jnp.cos(total), "x"), None), x, length=3)
        return looped + jax.lax.psum(x + looped if is_in_order else x, "x")

    function = jax.shard_map(sums, mesh=mesh, in_specs=PartitionSpec("x"), out_specs=PartitionSpec(), check_vma=False)
    for _ in range(2):
        config = make_config(make_spec(tmp_path, tmp_path))
        programs = CompileCache(str(tmp_path / "kept"), tmp_path, config, make_layout(), ProcessGroup(0, 1), SECRET)
        programs.compile_or_load("sums", function, (argument,), 0)(argument).block_until_ready()

    assert count(caplog, "compiled a program") == times


@pytest.fixture
def kept_by_jax(tmp_path: Path) -> Iterator[Path]:
    """The folder in which JAX stores its own programs meanwhile."""
    folder, before = tmp_path / "jax", jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(folder))
    yield folder
    jax.config.update("jax_compilation_cache_dir", before)


@pytest.mark.thorough
def test_jax_stores_no_programs_that_cannot_be_serialized_again(tmp_path: Path, kept_by_jax: Path) -> None:
    jax.jit(lambda x: 3 * x)(jnp.arange(5.0))
    before = set(kept_by_jax.iterdir())
    jax.clear_caches()  # in which other tests left the program below

    build(tmp_path / "kept", tmp_path)

    assert before
    assert set(kept_by_jax.iterdir()) == before


@pytest.mark.parametrize(
    "changes",
    [{"optimizer__learningRate": 0.5}, {"parallelism__rules": {"vocab": []}}],
    ids=lambda one: next(iter(one)),
)
def test_another_spec_is_another_program(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    build(tmp_path / "kept", tmp_path)
    build(tmp_path / "kept", tmp_path, **changes)

    assert count(caplog, "compiled a program") == 2


@pytest.mark.parametrize("content", [b"", b"not a program"])
def test_broken_program_is_compiled_again(tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes) -> None:
    build(tmp_path / "kept", tmp_path)
    (kept,) = (tmp_path / "kept").glob("*.program")
    kept.write_bytes(content)

    build(tmp_path / "kept", tmp_path)
    build(tmp_path / "kept", tmp_path)

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (2, 1)


def test_one_process_compiles_for_all(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    together(3, lambda peers: build(tmp_path / f"kept-{peers.process}", tmp_path, peers))
    together(3, lambda peers: build(tmp_path / f"kept-{peers.process}", tmp_path, peers))

    assert count(caplog, "compiled a program") == 1
    assert len(list(tmp_path.glob("kept-*/*.program"))) == 3
    assert list((tmp_path / "programs").iterdir()) == []


def test_restarted_process_receives_the_program_from_a_peer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path / "kept-1", tmp_path)

    together(2, lambda peers: build(tmp_path / f"kept-{peers.process}", tmp_path, peers))

    assert count(caplog, "compiled a program") == 1


def test_program_compiled_ahead_is_loaded_by_all_and_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path / SHARED_FOLDER, tmp_path)  # as a process does that compiles for others
    (ahead,) = (tmp_path / SHARED_FOLDER).iterdir()

    together(2, lambda peers: build(tmp_path / f"kept-{peers.process}", tmp_path, peers))

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (1, 2)
    assert [path.name for path in sorted(tmp_path.glob("kept-*/*"))] == [ahead.name] * 2
    assert ahead.exists()


def test_damaged_program_of_the_shared_folder_is_compiled_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    build(tmp_path / SHARED_FOLDER, tmp_path)
    (ahead,) = (tmp_path / SHARED_FOLDER).iterdir()
    ahead.write_bytes(b"not a program")

    together(2, lambda peers: build(tmp_path / f"kept-{peers.process}", tmp_path, peers))

    assert count(caplog, "compiled a program") == 2
    assert len(list(tmp_path.glob("kept-*/*"))) == 2


def test_host_shares_its_programs(tmp_path: Path) -> None:
    build(tmp_path / "kept", tmp_path)
    config = make_config(make_spec(tmp_path, tmp_path))
    programs = CompileCache(str(tmp_path / "kept"), tmp_path, config, make_layout(), ProcessGroup(0, 1), SECRET)

    assert programs.copy_to_shared("double")
    assert programs.copy_to_shared("double")
    assert not programs.copy_to_shared("triple")
    assert [path.read_bytes() for path in (tmp_path / SHARED_FOLDER).iterdir()] == [
        path.read_bytes() for path in (tmp_path / "kept").iterdir()
    ]


def test_a_process_on_another_kind_of_machine_compiles_for_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(peers: ProcessGroup) -> jax.Array:
        # The learning rate stands for anything that makes the programs of two machines differ.
        return build(tmp_path / f"kept-{peers.process}", tmp_path, peers, optimizer__learningRate=0.1 + peers.process)

    together(2, act)

    assert count(caplog, "compiled a program") == 2


def test_the_layout_and_the_compiler_flags_shape_a_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = make_config(make_spec(tmp_path, tmp_path))
    plain = compile_cache_key(config, make_layout())
    wider = compile_cache_key(config, make_layout(rows_per_shard=4))
    monkeypatch.setenv("XLA_FLAGS", "--xla_something")

    assert len({str(one) for one in (plain, wider, compile_cache_key(config, make_layout()))}) == 3


MODELS: dict[str, dict[str, Any]] = {
    "one MLP a layer": {},
    "experts": {"model__experts": {"count": 2, "perToken": 1}},
}


ALL = make_layout(devices_per_host=8, ici=AxisDegrees(fsdp=8), rows_per_shard=1)  # all devices, as in a world
PEERS = ProcessGroup(0, 1)


@each("changes", MODELS)
def test_a_train_step_is_loaded_and_trains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, changes: dict[str, Any]
) -> None:
    config = make_config(make_spec(tmp_path, tmp_path, training__globalBatchSize=8, **changes))
    run = Run(config.spec, ALL)
    programs = CompileCache(str(tmp_path / "kept"), tmp_path, config, ALL, PEERS, SECRET)

    run.steps.compile_train(programs, run.batches.held_out_shape)
    step = run.steps.compile_train(programs, run.batches.held_out_shape)
    _, measures = step(run.state, run.batch(1), run.controls())

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (1, 1)
    assert float(measures.loss) > 1
    assert sorted(measures.objective) == (["dropped", "load_balance"] if changes else [])


@pytest.mark.slow
def test_a_train_step_serves_on_after_an_edit_of_the_number_of_steps(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    falling = {"type": "linear", "finalFraction": 0}
    rates = []
    for steps in (10, 20):
        spec = make_spec(tmp_path, tmp_path, training__globalBatchSize=8, training__steps=steps, schedule=falling)
        config = make_config(spec)
        run = Run(config.spec, ALL)
        programs = CompileCache(str(tmp_path / "kept"), tmp_path, config, ALL, PEERS, SECRET)
        step = run.steps.compile_train(programs, run.batches.held_out_shape)
        _, measures = step(run.state, run.batch(1), run.controls())
        rates.append(float(measures.learning_rate))

    assert (count(caplog, "compiled a program"), count(caplog, "loaded a compiled program")) == (1, 1)
    assert rates == pytest.approx([0.01 * 9 / 10, 0.01 * 19 / 20])  # the first of so many, down to 0
