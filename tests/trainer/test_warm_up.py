"""What a standby does in advance: all of a restart that needs no device, and nothing that needs one."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

from tests.support.trainer.tiny import make_config, make_layout, make_spec
from tests.support.trainer.training import spec_with
from trainingjob_agent.trainer_protocol import CONFIG_VARIABLE, EVENTS_FD_VARIABLE
from trainingjob_trainer.main import warm_up
from trainingjob_trainer.models.decoder import split_model
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.step import StepPrograms

STANDBY = """
import os
from jax._src import xla_bridge
from trainingjob_trainer.main import warm_up
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.models.decoder import split_model
from trainingjob_trainer.runtime.preflight import expected_digests
from trainingjob_trainer.step import StepPrograms

warm_up(os.environ)
assert split_model.cache_info().currsize == 1
assert expected_digests.cache_info().currsize == 1
assert not xla_bridge.backends_are_initialized()
"""

COUNT_COLLECTIONS = """
import gc, os, runpy
gc.callbacks.append(lambda phase, info: os.write(1, b"x") if phase == "start" else 0)
runpy.run_module("trainingjob_trainer.main", run_name="__main__")
"""


def write_config(folder: Path) -> str:
    path = folder / "run.json"
    path.write_text(make_config(make_spec(folder, folder)).model_dump_json(by_alias=True))
    return str(path)


@pytest.mark.thorough
def test_a_standby_traces_the_model_and_touches_no_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_VARIABLE, write_config(tmp_path))

    subprocess.run([sys.executable, "-c", STANDBY], check=True)


@pytest.mark.thorough
def test_a_standby_scans_no_objects_before_it_is_ready() -> None:
    ready, events = os.pipe()
    command = [sys.executable, "-c", COUNT_COLLECTIONS]
    environment = os.environ | {EVENTS_FD_VARIABLE: str(events)}
    collections = subprocess.check_output(
        command, env=environment, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[events]
    )
    os.close(events)

    assert b'"ready":true' in os.read(ready, 1000)
    assert len(collections) < 5
    os.close(ready)


def test_a_world_of_the_same_model_does_not_trace_it_again(tmp_path: Path) -> None:
    split_model.cache_clear()
    warm_up({CONFIG_VARIABLE: write_config(tmp_path)})
    mesh = build_mesh(jax.devices()[:2], make_layout())
    StepPrograms(spec_with(training__steps=7, schedule__type="constant"), mesh)
    StepPrograms(spec_with(precision__compute="bfloat16"), mesh)

    info = split_model.cache_info()
    assert (info.hits, info.misses) == (1, 2)


@pytest.mark.thorough
def test_describing_a_world_s_state_compiles_nothing() -> None:
    mesh = build_mesh(jax.devices()[:2], make_layout())
    jax.clear_caches()
    received: list[str] = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, seconds, **_: received.append(name))

    StepPrograms(spec_with(), mesh)
    assert [name for name in received if "backend_compile" in name] == []

    jax.jit(lambda: 2)()
    assert [name for name in received if "backend_compile" in name]
    jax.monitoring.clear_event_listeners()


@pytest.mark.parametrize("content", [None, "{}", "no JSON"], ids=["no file", "another release's", "broken"])
def test_unusable_config_is_reported_when_the_world_starts(tmp_path: Path, content: str | None) -> None:
    if content:
        (tmp_path / "run.json").write_text(content)

    warm_up({CONFIG_VARIABLE: str(tmp_path / "run.json")})
    warm_up({})
