"""`plan --compile`: the plan beside the compiler's figures, and its message without a compiler."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.command_line import CliRunner
from tests.support.patience import ENDLESS_SECONDS
from trainingjob_api.compile_report import Collective, CompileAnswer, CompiledStep
from trainingjob_operator.cli import plan_compile
from trainingjob_operator.cli.entry_point import app

ROOT = Path(__file__).parents[2]
DEMO = str(ROOT / "crds/examples/demo.yaml")
TPU = str(ROOT / "crds/examples/tpu-v5p-4-slices.yaml")
STEP = CompiledStep(
    num_slices=1,
    arguments=60_000_000,
    outputs=50_000_000,
    aliased=50_000_000,
    temporaries=20_000_000,
    flops=1_500_000_000,
    collectives=(
        Collective(network="ici", axes=("fsdp",), kind="all-gather", bytes=3_000_000),
        Collective(network="ici", axes=("tensor",), kind="all-reduce", bytes=1_000_000),
        Collective(network="dcn", axes=("data",), kind="all-reduce", bytes=700_000),
    ),
    seconds=12.0,
)


def call(*args: str) -> SimpleNamespace:
    result = CliRunner().invoke(app, ["plan", "--compile", *args], catch_exceptions=False)
    return SimpleNamespace(code=result.exit_code, out=result.stdout, err=result.stderr)


def answer_with(monkeypatch: pytest.MonkeyPatch, *lines: str, code: int = 0) -> None:
    """Put a program in the compiler's place that reads a plan and prints these lines."""
    program = f"import sys; sys.stdin.read(); print('the end', file=sys.stderr); print({chr(10).join(lines)!r})"
    monkeypatch.setattr(plan_compile, "PROGRAM", ("-c", f"{program}; sys.exit({code})"))


def test_each_size_is_listed_with_the_compiler_s_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = CompileAnswer(num_slices=2, error="XlaRuntimeError: too large")
    answer_with(monkeypatch, CompileAnswer(num_slices=1, step=STEP).model_dump_json(), failed.model_dump_json())

    result = call(DEMO)

    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[2].split() == ["slices", "what", "estimate", "compiler", "off"]
    assert [line[:34].strip() for line in lines[3:9]] == [
        "1  memory",
        "1  FLOPs",
        "1  sent over dcn along data",
        "1  sent over ici along data",
        "1  sent over ici along fsdp",
        "1  sent over ici along tensor",
    ]
    assert lines[3].split()[-4:-2] == ["80", "MB"]
    assert lines[4].split()[-4:-2] == ["1.5", "B"]
    assert lines[8].split()[-6:] == ["0", "B", "1", "MB", "-100", "%"]
    assert lines[9] == "2 slices: XlaRuntimeError: too large"


def test_json_has_the_plan_and_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [CompileAnswer(num_slices=n, step=STEP) for n in (1, 2)]
    answer_with(monkeypatch, *(answer.model_dump_json() for answer in answers))

    result = call(DEMO, "--json")

    assert result.code == 0
    reported = json.loads(result.out)
    assert reported["allowed"] == [1, 2]
    assert [CompileAnswer.model_validate(one) for one in reported["compiled"]] == answers


def test_crashed_compiler_is_reported_with_its_last_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_compile, "PROGRAM", ("-c", "import sys; print('no memory', file=sys.stderr); sys.exit(3)"))

    result = call(DEMO)

    assert (result.code, result.out) == (2, "")
    assert result.err == "Error: the compiler exited with code 3:\nno memory\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_compiler_ends_with_the_command(number: signal.Signals, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    compiler = (
        f"import os, pathlib, time; pathlib.Path({str(pid_file)!r}).write_text(f'{{os.getpid()}} '); time.sleep(60)"
    )
    program = (
        "from trainingjob_operator.cli import entry_point, plan_compile\n"
        f"plan_compile.PROGRAM = ('-c', {compiler!r})\n"
        f"entry_point.app(['plan', '--compile', {DEMO!r}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL) as command:
        pid = wait_for_pid(pid_file)
        pidfd = os.pidfd_open(pid)
        command.send_signal(number)

    ended, _, _ = select.select([pidfd], [], [], ENDLESS_SECONDS)
    os.close(pidfd)
    assert ended


def wait_for_pid(path: Path) -> int:
    deadline = time.monotonic() + ENDLESS_SECONDS
    while not path.exists() or not path.read_text().endswith(" "):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(path.read_text())


def test_invalid_answer_of_the_compiler_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_with(monkeypatch, "hello")

    assert "the compiler's output cannot be read: hello" in call(DEMO).err


@pytest.mark.parametrize(
    ("file", "missing", "want"),
    [
        (
            DEMO,
            ("jax",),
            "--compile needs the trainer, which is not installed here: pip install 'trainingjob[trainer]'",
        ),
        (TPU, ("libtpu",), "pip install 'trainingjob[trainer,tpu-compile]'"),
        (str(ROOT / "crds/examples/h100-2-nodes.yaml"), (), "nvidia-h100 needs its device to compile"),
    ],
    ids=["no trainer", "no libtpu", "a GPU"],
)
def test_missing_compiler_is_named(
    monkeypatch: pytest.MonkeyPatch, file: str, missing: tuple[str, ...], want: str
) -> None:
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)

    monkeypatch.setattr(plan_compile.importlib.util, "find_spec", lambda name: None if name in missing else object())

    result = call(file)

    assert (result.code, result.out) == (2, "")
    assert want in result.err


def test_it_is_not_mixed_with_a_comparison() -> None:
    result = call(DEMO, "--diff", DEMO)

    assert (result.code, result.err) == (
        2,
        "Error: --compile and --diff must not be combined: compile one plan at a time.\n",
    )
