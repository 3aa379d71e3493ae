"""Commands that need no extras work without them; the others name the missing extra."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCK = """
import importlib.abc, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Block())
sys.argv = ["{program}", *{args!r}]
from {module} import {function}
{function}()
"""
EXTRA = {
    *("aiohttp", "kubernetes", "kopf", "cryptography", "prometheus_client"),
    *("jax", "jaxlib", "flax", "optax", "orbax", "numpy", "etils", "tensorboardX", "tokenizers", "wandb", "libtpu"),
}
DEMO = "crds/examples/demo.yaml"


def run(program: str, *args: str, blocked: set[str] = EXTRA) -> "subprocess.CompletedProcess[str]":
    """Run an entry point of the package as if some libraries were not installed."""
    module, _, function = PROJECT["scripts"][program].partition(":")
    code = BLOCK.format(blocked=blocked, program=program, args=list(args), module=module, function=function)
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


OFFLINE = {
    "validate": ("validate", DEMO),
    "plan": ("plan", DEMO),
    "plan as JSON": ("plan", DEMO, "--json"),
    "render": ("render", DEMO),
    "explain": ("explain", "spec.training"),
    "presets": ("presets", "qwen3-8b"),
    "convert": ("convert", "tests/fixtures/huggingface/qwen3/config.json"),
    "simulate": ("simulate", "crds/examples/tpu-v5p-4-slices.yaml", "--time", "1m"),
    "help": ("--help",),
    "version": ("version",),
}


@pytest.mark.thorough
@pytest.mark.parametrize("args", OFFLINE.values(), ids=OFFLINE.keys())
def test_offline_commands_need_no_extra(args: tuple[str, ...]) -> None:
    done = run("trainingjob", *args)

    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert done.stdout


NEED = {
    "status": ("trainingjob", ("status", "demo"), "cli"),
    "wait": ("kubectl-trainingjob", ("wait", "demo"), "cli"),
    "logs": ("trainingjob", ("logs", "demo"), "cli"),
    "scale": ("trainingjob", ("scale", "demo", "--max", "2"), "cli"),
    "suspend": ("trainingjob", ("suspend", "demo"), "cli"),
    "drill": ("trainingjob", ("drill", "demo", "hang"), "cli"),
    "profile": ("trainingjob", ("profile", "demo"), "cli"),
    "stacks": ("trainingjob", ("stacks", "demo"), "cli"),
    "run": ("trainingjob", ("run", DEMO), "cli"),
    "compile": ("trainingjob", ("plan", DEMO, "--compile"), "trainer"),
    "import": ("trainingjob", ("import", "."), "trainer"),
    "export": ("trainingjob", ("export", DEMO, "out"), "trainer"),
    "the operator": ("trainingjob-operator", (), "operator"),
    "the agent": ("trainingjob-agent", (), "trainer"),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("program", "args", "extra"), NEED.values(), ids=NEED.keys())
def test_command_without_its_extra_names_it(program: str, args: tuple[str, ...], extra: str) -> None:
    done = run(program, *args)

    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert f"pip install 'trainingjob[{extra}]'" in done.stderr


@pytest.mark.parametrize(
    "package", ["crds/trainingjob_api", "operator/trainingjob_operator", "trainer/trainingjob_trainer"]
)
def test_types_are_published(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_metadata_has_ranges_and_the_lock_has_pins() -> None:
    wanted = [*PROJECT["dependencies"], *(one for extra in PROJECT["optional-dependencies"].values() for one in extra)]
    lock = (ROOT / "requirements.lock").read_text()

    assert all("==" not in one and ">=" in one for one in wanted)
    for one in wanted:
        name = one.partition(">=")[0].partition("[")[0]
        assert f"\n{name}==" in f"\n{lock}" or name == "libtpu"
    assert {"Homepage", "Documentation"} <= PROJECT["urls"].keys()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_every_builder_leaves_out_the_same() -> None:
    """Docker and kaniko read one file, podman and buildah the other."""
    assert (ROOT / ".dockerignore").read_text() == (ROOT / ".containerignore").read_text()


def test_the_readme_quotes_extras() -> None:
    """A shell such as zsh takes brackets for a pattern."""
    lines = (ROOT / "README.md").read_text().splitlines()

    assert not [line for line in lines if "pip install" in line and "[" in line and "'" not in line]
