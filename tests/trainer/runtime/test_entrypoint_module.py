"""The module of an entrypoint: where it is found, what its errors say, and which sources its hash has."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.trainer.tiny import make_config, make_layout, make_spec
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.program import Program
from trainingjob_trainer.runtime import entrypoint_module
from trainingjob_trainer.runtime.compile_cache_key import compile_cache_key
from trainingjob_trainer.runtime.entrypoint_module import compare_sources, load_entrypoint
from trainingjob_trainer.runtime.errors import TrainingError

type Write = Callable[..., Program]
VALID = "def customize(context):\n    return context\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Return a function that writes files of a folder, and returns the program section that imports from it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write_files(files: dict[str, str], entrypoint: str = "losses:customize") -> Program:
        forget()
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        return Program(entrypoint=entrypoint, working_directory=str(tmp_path))

    def forget() -> None:
        entrypoint_module._load.cache_clear()
        for name in set(sys.modules) - before:
            if name.partition(".")[0] == "losses":
                del sys.modules[name]

    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # files of one second have the same age
    yield write_files
    forget()


def fail(program: Program) -> TrainingError:
    with pytest.raises(TrainingError) as caught:
        load_entrypoint(program)
    assert (caught.value.reason, caught.value.fatal) == (FailureReason.CONFIG, True)
    return caught.value


def test_a_module_of_the_image_may_be_in_its_working_directory(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes last: a file of it must replace no module of the trainer."""
    write({"losses.py": VALID})
    monkeypatch.chdir(tmp_path)

    loaded = load_entrypoint(Program(entrypoint="losses:customize"))

    assert (loaded.function(3), sys.path[-1]) == (3, str(tmp_path))


def test_a_function_of_a_folder_is_imported_once(write: Write) -> None:
    program = write({"losses/focal.py": VALID}, "losses.focal:customize")
    loaded = load_entrypoint(program)

    assert loaded.function(3) == 3
    assert load_entrypoint(program) is loaded


CUSTOMIZE = "losses:customize"
INVALID = {
    "no module": ({}, CUSTOMIZE, "{folder} must have the module losses. Correct it, or set"),
    "no module of a package": ({"losses/a.py": VALID}, "losses.b:customize", "must have the module losses.b."),
    "a missing import": ({"losses.py": "import no_such"}, CUSTOMIZE, "losses imports the module no_such, which"),
    "no Python": ({"losses.py": "def"}, CUSTOMIZE, "failed with SyntaxError: invalid syntax (losses.py, line 1)"),
    "an error": (
        {"losses.py": "x = 1\n1 / 0"},
        CUSTOMIZE,
        "ZeroDivisionError: division by zero ({folder}/losses.py:2)",
    ),
    "an exit": ({"losses.py": "exit(3)"}, CUSTOMIZE, "the import of losses failed with SystemExit: 3"),
    "no function": ({"losses.py": VALID}, "losses:customise", "must have the function customise. It has: customize."),
    "no function at all": ({"losses.py": "customize = 3"}, CUSTOMIZE, "It has: none."),
    "two arguments": (
        {"losses.py": "def customize(a, b): ..."},
        CUSTOMIZE,
        "customize must take one argument, the context of the entrypoint: missing a required argument: 'b'.",
    ),
    "a hidden module": ({"pytest.py": VALID}, "pytest:customize", "pytest must be a module of {folder}, but "),
}


@pytest.mark.parametrize(("files", "entrypoint", "message"), INVALID.values(), ids=INVALID)
def test_an_unusable_function_is_named(
    files: dict[str, str], entrypoint: str, message: str, write: Write, tmp_path: Path
) -> None:
    error = fail(write(files, entrypoint))

    assert (error.path, error.value) == ("spec.program.entrypoint", entrypoint)
    assert message.replace("{folder}", str(tmp_path)) in str(error)


def test_an_unusable_folder_is_named(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Program(entrypoint="losses:customize", working_directory=str(tmp_path / "none"))
    monkeypatch.setattr(entrypoint_module, "MAX_ENTRIES", 3)
    large = write({"losses.py": VALID, **{f"data/{number}": "" for number in range(3)}})

    for program, message in ((missing, "must be a folder on every host"), (large, "must have at most 3 files and")):
        error = fail(program)
        assert (error.path, error.value) == ("spec.program.workingDirectory", program.working_directory)
        assert message in str(error)


@pytest.mark.thorough
def test_a_module_that_uses_a_device_is_refused(write: Write) -> None:
    """In a separate process: this one has used its devices."""
    program = write({"losses.py": "import jax\njax.devices()\n" + VALID})
    source = f"""
import os
os.environ["JAX_PLATFORMS"] = "cpu"
from trainingjob_api.spec.program import Program
from trainingjob_trainer.runtime.entrypoint_module import load_entrypoint
load_entrypoint(Program.model_validate_json({program.model_dump_json()!r}))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=False)

    assert "TrainingError: the import of losses must use no device" in done.stderr


def test_any_source_of_the_folder_changes_the_key(write: Write, tmp_path: Path) -> None:
    def key(files: dict[str, str], **changes: Any) -> str:
        program = write(files).model_dump(mode="json", by_alias=True)
        spec = make_spec(Path("/run"), Path("/text"), program=program, **changes)
        return str(compile_cache_key(make_config(spec), make_layout()))

    variable = {"runtime": {"env": [{"name": "GAMMA", "value": "2"}]}}
    plain = key({"losses.py": VALID})
    keys = [
        plain,
        key({"other.py": "x = 1"}),
        key({"other.py": "x = 2"}),
        key({"deep/other.py": ""}),
        key({"losses.py": VALID + "\n"}),
        key({}, **variable),
    ]

    assert len(set(keys)) == len(keys)
    assert key({"data.bin": "", "__pycache__/x.py": "", ".git/x.py": ""}) == keys[-2]


def test_processes_with_other_sources_form_no_world(write: Write) -> None:
    program = write({"losses.py": VALID})
    own = load_entrypoint(program).sources_hash
    peers: Any = SimpleNamespace(exchange=lambda name, text, seconds: (own, own, "another"))
    compare_sources(program, SimpleNamespace(exchange=lambda name, text, seconds: (text, text)))  # type: ignore[arg-type]

    with pytest.raises(TrainingError, match="processes 0 and 2 have imported different sources") as caught:
        compare_sources(program, peers)
    assert not caught.value.fatal
