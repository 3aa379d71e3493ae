"""What a program of each platform receives for its world. That of CPUs is tested with a real process."""

import pytest

from tests.support.trainer.tiny import make_config, make_layout, make_spec, make_world
from trainingjob_agent.program_environment import program_environment, world_values
from trainingjob_agent.trainer_protocol import StartWorld

LAYOUT = make_layout(num_slices=2, devices_per_host=4)
JAX = {"tpu": "tpu,cpu", "cuda": "cuda,cpu", "cpu": "cpu"}


def make_start(platform: str, tmp_path) -> StartWorld:
    """Return the start of the second process of two slices of one host each."""
    config = make_config(make_spec(tmp_path, tmp_path), (LAYOUT,), platform=platform)
    return StartWorld(world=make_world(3, 2), process=1, config=config, compile_cache="/cache")


@pytest.mark.parametrize(("platform", "wanted"), JAX.items())
def test_variables_of_jax_follow_the_platform(platform: str, wanted: str, tmp_path) -> None:
    environment = program_environment(make_start(platform, tmp_path), {"TRAININGJOB_TOKEN": "/token", "HOME": "/"})

    assert environment["JAX_PLATFORMS"] == wanted
    assert ("JAX_NUM_CPU_DEVICES" in environment) == (platform == "cpu")
    assert environment["JAX_LOCAL_DEVICE_IDS"] == "0,1,2,3"
    assert (environment["OMPI_COMM_WORLD_RANK"], environment["OMPI_COMM_WORLD_SIZE"]) == ("1", "2")
    assert (environment["HOME"], environment["TRAININGJOB_SLICE_MAP"]) == ("/", "0,1")
    assert "TRAININGJOB_TOKEN" not in environment


def test_values_of_the_job_take_precedence_and_those_of_a_former_world_are_gone(tmp_path) -> None:
    inherited = {"JAX_COMPILATION_CACHE_DIR": "/mine", "MEGASCALE_SLICE_ID": "7", "NCCL_COMM_ID": "10.0.0.9:1"}
    start = make_start("cuda", tmp_path)

    environment = program_environment(start, inherited)
    without_cache = program_environment(start.model_copy(update={"compile_cache": ""}), {})

    assert environment["JAX_COMPILATION_CACHE_DIR"] == "/mine"
    assert "JAX_COMPILATION_CACHE_DIR" not in without_cache
    assert not environment.keys() & {"MEGASCALE_SLICE_ID", "NCCL_COMM_ID"}
    assert environment["JAX_COORDINATOR_ADDRESS"] == world_values(start)["coordinator"]
