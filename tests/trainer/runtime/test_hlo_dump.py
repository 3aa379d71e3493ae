"""Dumps of compiled programs: files of all programs from process 0, for compiled and loaded programs alike."""

import logging
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.support.trainer.tiny import SECRET, make_config, make_layout, make_spec, make_world
from trainingjob_agent.trainer_protocol import StartWorld
from trainingjob_trainer.runtime import hlo_dump
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.hlo_dump import open_hlo_dump
from trainingjob_trainer.runtime.process_group import ProcessGroup


def sine(x: jax.Array) -> jax.Array:
    return jnp.sin(x)


def build(root: Path, process: int = 0, **profiling: Any) -> str:
    """Compile or load a program as a world does, and return the name of its file in the cache."""
    config = make_config(make_spec(root, root, **({"profiling": profiling} if profiling else {})))
    start = StartWorld(config=config, world=make_world(1, 2), process=process)
    folder, alone, dump = str(root / "kept"), ProcessGroup(0, 1), open_hlo_dump(start)
    programs = CompileCache(folder, str(root), config, make_layout(), alone, SECRET, dump)
    everywhere = NamedSharding(Mesh(jax.devices(), "x"), PartitionSpec())
    argument = jax.device_put(jnp.arange(4.0), everywhere)
    assert programs.compile_or_load("sine", sine, (argument,), 0)(argument).shape == (4,)
    return programs.file_name("sine")


def list_dumps(root: Path) -> list[str]:
    return sorted(path.relative_to(root / "profiles").as_posix() for path in (root / "profiles").rglob("*.hlo.*"))


@pytest.mark.parametrize(
    ("form", "suffixes"), [("text", ["txt"]), ("proto", ["pb"]), ("both", ["pb", "txt"]), (None, [])]
)
def test_each_format_has_its_file(form: str | None, suffixes: list[str], tmp_path: Path) -> None:
    build(tmp_path, **({"hlo": form} if form else {"startStep": 3}))

    assert list_dumps(tmp_path) == [f"hlo/slices-2/sine.hlo.{suffix}" for suffix in suffixes]


def test_a_loaded_program_is_dumped_as_the_compiled_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    plain = build(tmp_path)
    dumped = build(tmp_path, hlo="both")
    text = tmp_path / "profiles" / "hlo" / "slices-2" / "sine.hlo.txt"
    loaded = text.read_text()
    (tmp_path / "kept" / plain).unlink()
    build(tmp_path, hlo="both")

    assert plain == dumped, "the option changes no key"
    assert loaded == text.read_text()
    assert "HloModule jit_sine" in loaded
    assert b"jit_sine" in text.with_suffix(".pb").read_bytes()
    assert [message.split(" name=")[0] for message in caplog.messages if " a " in message] == [
        "compiled a program",
        "loaded a compiled program",
        "compiled a program",
    ]


def test_other_processes_write_nothing(tmp_path: Path) -> None:
    build(tmp_path, process=1, hlo="text")

    assert list_dumps(tmp_path) == []


@pytest.mark.parametrize("reason", ["store", "size"])
def test_a_dump_that_fails_costs_no_program(
    reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason == "store":
        (tmp_path / "profiles").write_text("not a folder")
    else:
        monkeypatch.setattr(hlo_dump, "MAX_BYTES", 10)

    build(tmp_path, hlo="text")

    (message,) = caplog.messages
    assert message.startswith("HLO not written name=sine error=")
