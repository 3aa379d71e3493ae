"""The locks agree with pyproject.toml, with each other and with the pins that JAX itself demands."""

import re
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
ADDED = {"tpu": r"libtpu", "cuda13": r"jax-cuda13-(plugin|pjrt)|nvidia-[a-z0-9-]+"}
"""Packages that the lock of a platform has beside those of the CPU image, as a pattern."""
LOCKS = {
    "requirements.lock": ("operator", "trainer", "cli", "e2e"),
    "operator/requirements.lock": ("operator",),
    "trainer/requirements.lock": ("trainer",),
    "trainer/requirements-tpu.lock": ("trainer", "tpu"),
    "trainer/requirements-cuda13.lock": ("trainer", "cuda13"),
    "trainer/tpu-compile.lock": ("tpu-compile",),
}
"""The extras of each lock."""


def read_pins(lock: str) -> dict[str, str]:
    """Return the version of each package, with the marker of those that some systems leave out."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\\\n]+?) *\\?$", (ROOT / lock).read_text(), re.MULTILINE))


def version(pin: str) -> Version:
    return Version(pin.partition(";")[0].strip())


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_has_a_version_in_range_for_each_dependency(lock: str) -> None:
    pins = read_pins(lock)
    wanted = [*PROJECT["dependencies"], *(one for extra in LOCKS[lock] for one in EXTRAS[extra])]

    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(version(pins[requirement.name])), requirement


def test_every_extra_is_in_a_lock() -> None:
    assert {extra for extras in LOCKS.values() for extra in extras} == EXTRAS.keys()


def test_the_build_backend_is_locked_as_the_project_demands_it() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    demanded = pyproject["build-system"]["requires"]
    pins, tested = read_pins("build.lock"), read_pins("requirements.lock")

    assert pyproject["dependency-groups"]["build"] == demanded
    assert [str(Requirement(text).specifier) for text in demanded] == [f"=={pins['hatchling']}"]
    assert {name: tested[name] for name in pins} == pins
    needed = {Requirement(text).name for text in requires("hatchling") or [] if "python_version <" not in text}
    assert needed < pins.keys()


@pytest.mark.parametrize("platform", ADDED)
def test_the_images_differ_only_in_the_libraries_of_their_platform(platform: str) -> None:
    cpu, pins = read_pins("trainer/requirements.lock"), read_pins(f"trainer/requirements-{platform}.lock")

    assert {name: pins.get(name) for name in cpu} == cpu
    assert pins.keys() > cpu.keys()
    assert [name for name in pins.keys() - cpu.keys() if not re.fullmatch(ADDED[platform], name)] == []


@pytest.mark.parametrize("lock", ["operator/requirements.lock", "trainer/requirements.lock"])
def test_the_images_have_what_the_tests_run_with(lock: str) -> None:
    tested, pins = read_pins("requirements.lock"), read_pins(lock)

    assert {name: pin for name, pin in pins.items() if version(tested[name]) != version(pin)} == {}


@pytest.mark.parametrize("platform", ADDED)
def test_the_plugin_is_the_one_that_jax_pins(platform: str) -> None:
    """JAX publishes its own pins as an extra: another libtpu or plugin may fail when the first program compiles."""
    pins = read_pins(f"trainer/requirements-{platform}.lock")
    demanded = [Requirement(text) for text in requires("jax") or [] if f'extra == "{platform}"' in text]

    assert len(demanded) >= 2
    for requirement in demanded:
        assert requirement.specifier.contains(version(pins[requirement.name])), requirement
