"""Variables that a library rejects are reported as their field of the spec, at the first try."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainingjob_agent.exit_reason import explain_exit
from trainingjob_agent.flag_errors import find_flag_error, locate_variable
from trainingjob_agent.state import ChildExited
from trainingjob_api.protocol import Failure, FailureReason
from trainingjob_api.spec.runtime import EnvVar, KeyRef
from trainingjob_trainer.runtime.failure_records import failure_record

TEXTS: dict[str, tuple[str, str, str]] = {
    name: (case["text"], case["variable"], case["words"])
    for name, case in yaml.safe_load((Path(__file__).parent / "flag_errors.yaml").read_text()).items()
}

ENV = (
    EnvVar(name="FIRST", value="1"),
    *(EnvVar(name=name, value="as written") for name in sorted({variable for _, variable, _ in TEXTS.values()})),
    EnvVar(name="FROM_A_SECRET", secret_key_ref=KeyRef(name="keys", key="flags")),
    EnvVar(name="FROM_A_MAP", config_map_key_ref=KeyRef(name="settings", key="flags")),
)
each_text = pytest.mark.parametrize(("text", "variable", "words"), TEXTS.values(), ids=TEXTS.keys())


def place(variable: str) -> str:
    return f"spec.runtime.env[{[one.name for one in ENV].index(variable)}].value"


@each_text
def test_a_process_that_ends_over_a_variable_names_its_field(text: str, variable: str, words: str) -> None:
    ended = ChildExited(1, code=1, log=f"some lines\n{text}\nusage:\n\t--xla_other=false\tbool\n")

    failure = explain_exit(ended, step=None, memory="2Gi", env=ENV)

    assert (failure.reason, failure.fatal) == (FailureReason.CONFIG, True)
    assert (failure.path, failure.value) == (place(variable), "as written")
    assert failure.message == f"the variable {variable} cannot be used: {words} Correct it, or leave it out."


@each_text
def test_an_exception_over_a_variable_names_its_field(text: str, variable: str, words: str) -> None:
    reported = failure_record(ValueError(text), step=None)
    failure = explain_exit(ChildExited(1, code=1, failure=reported), step=None, memory="2Gi", env=ENV)

    assert (failure.reason, failure.fatal) == (FailureReason.CONFIG, True)
    assert failure.path == place(variable)
    assert words in failure.message


def test_a_variable_of_the_image_is_named_without_a_place() -> None:
    ended = ChildExited(1, signal="SIGABRT", log=TEXTS["an unknown flag"][0])
    failure = explain_exit(ended, step=None, memory="2Gi")

    assert (failure.path, failure.value) == ("spec.runtime.env", "")
    assert "XLA_FLAGS" in failure.message


@pytest.mark.parametrize(("name", "field"), [("FROM_A_SECRET", "secretKeyRef"), ("FROM_A_MAP", "configMapKeyRef")])
def test_a_variable_of_another_object_is_named_by_what_it_refers_to(name: str, field: str) -> None:
    path, value = locate_variable(ENV, name)

    assert path.endswith(f"].{field}")
    assert value == ""


OTHER_LOGS = {
    "nothing": "",
    "a usage text": "usage: --xla_a=1\nFlags:\n\t--xla_cpu_ftz=true\tbool\tIf true",
    "a warning of NCCL": "NCCL INFO NCCL_SOCKET_IFNAME set by environment to eth0\nNCCL INFO comm ready",
    "another number": "ValueError: invalid literal for int() with base 10: 'x'",
}


@pytest.mark.parametrize("log", OTHER_LOGS.values(), ids=OTHER_LOGS.keys())
def test_other_logs_speak_of_no_variable(log: str) -> None:
    assert find_flag_error(log) is None


def test_the_first_of_two_errors_counts() -> None:
    first, second = TEXTS["an unknown flag"][0], TEXTS["a truth value"][0]

    assert find_flag_error(first + second).variable == "XLA_FLAGS"  # type: ignore[union-attr]
    assert find_flag_error(second + first).variable == "JAX_ENABLE_X64"  # type: ignore[union-attr]


def test_a_process_that_was_killed_is_no_matter_of_flags() -> None:
    ended = ChildExited(1, signal="SIGKILL", log=TEXTS["an unknown flag"][0])

    assert explain_exit(ended, step=None, memory="2Gi", env=ENV).reason is FailureReason.KILLED


def test_failure_of_another_field_keeps_its_field() -> None:
    reported = Failure(reason=FailureReason.DATA, message="no text", path="spec.data", value="a")

    assert explain_exit(ChildExited(1, code=1, failure=reported), step=None, memory="2Gi", env=ENV).path == "spec.data"


REAL: dict[str, tuple[str, str]] = {
    "a dash of a text processor": ("XLA_FLAGS", "-\N{EN DASH}xla_dump_to=/tmp/x"),
    "an unknown flag": ("XLA_FLAGS", "--xla_nope=1 --xla_foo"),
    "no dashes": ("XLA_FLAGS", "xla_dump_to=/tmp"),
    "a flag of another kind": ("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=many"),
    "a truth value": ("JAX_ENABLE_X64", "maybe"),
    "a choice": ("JAX_DEFAULT_MATMUL_PRECISION", "foo"),
}


@pytest.mark.parametrize(("variable", "value"), REAL.values(), ids=REAL.keys())
def test_errors_of_the_installed_jax_are_recognized(variable: str, value: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices()"],
        env={**os.environ, "JAX_PLATFORMS": "cpu", variable: value},
        capture_output=True,
        text=True,
        check=False,
    )

    error = find_flag_error(ended.stderr)

    assert ended.returncode != 0
    assert error is not None
    assert error.variable == variable
