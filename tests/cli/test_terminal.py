"""What reaches a terminal or a pipe: no control character of a cluster or a file, and nothing after the reader left."""

import ast
import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rich.live import Live
from rich.text import Text

from tests.support.command_line import CliRunner
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli import printing
from trainingjob_operator.cli.console import SafeConsole
from trainingjob_operator.cli.entry_point import app
from trainingjob_operator.cli.local.run_events import RunProgress
from trainingjob_operator.cli.local.view import LiveView, PlainView
from trainingjob_operator.cli.printing import PipeSafeStream, align, escape_controls
from trainingjob_operator.cli.report import describe_job
from trainingjob_operator.core.times import parse_time

ROOT = Path(__file__).parents[2]
CLI = ROOT / "operator/trainingjob_operator/cli"
ATTACKS = {
    "the clipboard (OSC 52)": "\x1b]52;c;cm0gLXJmIC8K\x07",
    "clear the screen": "\x1b[2J",
    "cursor up": "\x1b[1A",
    "erase the line": "\x1b[2K",
    "title (OSC 0)": "\x1b]0;root\x07",
    "hyperlink (OSC 8)": "\x1b]8;;http://example.org\x1b\\",
    "device control (DCS)": "\x1bP+q544e\x1b\\",
    "reset (RIS)": "\x1bc",
    "save and restore the cursor": "\x1b7\x1b8",
    "alternate screen": "\x1b[?1049h",
    "8-bit CSI": "\x9b2J",
    "8-bit OSC": "\x9d52;c;eA==\x9c",
    "8-bit DCS": "\x90q\x9c",
    "next line (NEL)": "\x85",
    "bell": "\x07",
    "backspace": "yes\x08\x08\x08no",
    "carriage return": "failed\rrunning",
    "vertical tab": "\x0b",
    "form feed": "\x0c",
    "shift out": "\x0e",
    "delete": "\x7f",
    "null": "\x00",
    "right to left": "\u202egpj.exe",
    "isolate": "\u2066\u2069",
    "marks": "\u200e\u200f\u061c",
    "line separators": "\u2028\u2029",
    "half a character": "\ud800",
}
HARMFUL = {*map(chr, range(9)), *map(chr, range(11, 32)), *map(chr, range(127, 160))} | set(
    "\u061c\u200e\u200f\u2028\u2029\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ud800"
)


def is_safe(text: str) -> bool:
    text.encode()  # half a character cannot be printed at all
    return HARMFUL.isdisjoint(text)


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_an_escape_of_it_is_printed(attack: str) -> None:
    escaped = escape_controls(f"before {attack} after")

    assert is_safe(escaped)
    assert escaped.startswith("before ")
    assert escaped.endswith(" after")
    assert escape_controls(escaped) == escaped


def test_printable_text_is_unchanged() -> None:
    text = "tab\t newline\n 1\u00d72 \U0001f999 \u05d0 it\u2019s"

    assert escape_controls(text) == text
    assert escape_controls("\x1b[1;31mred\x1b[0m \x9b32mgreen") == "red green", "colours say nothing"


def console(**settings: object) -> tuple[SafeConsole, io.StringIO]:
    file = io.StringIO()
    return SafeConsole(file=file, width=200, **settings), file  # type: ignore[arg-type]


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_every_console_escapes_control_codes(attack: str) -> None:
    plain, file = console()
    plain.print(Text(attack), soft_wrap=True)
    plain.print(f"a{attack}", markup=False, highlight=False, soft_wrap=True)
    PlainView(plain, 10).print_line(attack)
    PlainView(plain, 10).show_progress(RunProgress(1, 1, attack), 0.0)

    assert is_safe(file.getvalue())


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_live_line_contains_only_its_own_control_codes(attack: str) -> None:
    def draw(text: str) -> str:
        terminal, file = console(force_terminal=True, color_system=None)
        with Live(Text(text), console=terminal, auto_refresh=False):
            pass
        view = LiveView(terminal, 10)
        with view:
            view.print_line(text)
            view.show_progress(RunProgress(1, 1, text), 0.0)
        return file.getvalue()

    drawn = draw(attack)

    assert "\x1b[" in drawn, "the terminal is drawn on"
    assert drawn.count("\x1b") == draw("nothing").count("\x1b")
    assert is_safe(drawn.replace("\x1b", "").replace("\r", ""))


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS.keys())
def test_columns_stay_aligned(attack: str) -> None:
    heading, line = align([("a", "b"), (attack, "x")])

    assert line.index("x") == heading.index("b") or "x" in escape_controls(attack)
    assert is_safe(line)


@pytest.mark.parametrize("attack", [one for one in ATTACKS.values() if "\ud800" not in one])
def test_status_escapes_control_codes_in_every_field(attack: str) -> None:
    now = "2026-11-21T12:00:00Z"
    cause = {"reason": "Crash", "message": attack}
    status = TrainingJobStatus.model_validate(
        {
            "phase": "Failed",
            "conditions": [
                {"type": "Failed", "status": "True", "reason": "Crash", "message": attack, "lastTransitionTime": now}
            ],
            "attempts": [{"generation": 1, "slices": 1, "started": now, "ended": now, "cause": cause}],
            "failingSaves": {"step": 1, "since": now, "message": attack},
        }
    )
    lines = describe_job("demo", status, parse_time(now))  # type: ignore[arg-type]
    plain, file = console()

    for line in lines:
        plain.print(Text(line), soft_wrap=True)

    assert is_safe(file.getvalue())


@pytest.mark.parametrize("attack", [one for one in ATTACKS.values() if "\ud800" not in one])
def test_a_file_s_own_text_is_printed_escaped(attack: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    job = {"apiVersion": "trainingjob.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": attack}}
    path.write_text(yaml.safe_dump({**job, "spec": {attack: attack}}), encoding="utf-8")

    for verb in ("validate", "plan", "render"):
        result = CliRunner().invoke(app, [verb, str(path)], catch_exceptions=False)
        assert result.exit_code == 1
        assert is_safe(result.output)


def test_only_one_module_prints() -> None:
    """A call that prints by itself would be a way around the escapes."""
    for path in CLI.rglob("*.py"):
        if path.name in ("printing.py", "console.py"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("print", "typer.echo", "typer.secho", "Console", "sys.stdout.write"), path
            if isinstance(node, ast.ImportFrom):
                assert node.module != "rich.console", path


def run(*args: str, **settings: object) -> "subprocess.CompletedProcess[bytes]":
    program = "import sys; from trainingjob_operator.cli.entry_point import main; main()"
    command = [sys.executable, "-c", program, *args]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, check=False, **settings)  # type: ignore[call-overload, no-any-return]


DEMO, INVALID = "crds/examples/demo.yaml", "crds/examples/invalid/mesh.yaml"
UNREAD = {
    "a valid job": (("validate", DEMO), 0),
    "an invalid job": (("validate", INVALID), 1),
    "a plan": (("plan", DEMO), 0),
    "a plan as JSON": (("plan", DEMO, "--json"), 0),
    "another plan": (("plan", DEMO, "--diff", "crds/examples/fixed.yaml"), 1),
    "objects": (("render", DEMO), 0),
    "all fields": (("explain", "-r"), 0),
    "help": (("--help",), 0),
    "version": (("--version",), 0),
}


@pytest.mark.thorough
@pytest.mark.parametrize(("args", "code"), UNREAD.values(), ids=UNREAD.keys())
def test_closed_pipe_changes_no_exit_code(args: tuple[str, ...], code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        result = run(*args, stdout=write)
    finally:
        os.close(write)

    assert (result.returncode, result.stderr) == (code, b"")


@pytest.mark.thorough
def test_full_disk_is_reported_on_one_line() -> None:
    with Path("/dev/full").open("wb") as full:
        result = run("plan", DEMO, stdout=full)

    assert result.returncode == 2
    assert result.stderr == b"Error: Cannot write the output: No space left on device.\n"


def test_a_closed_output_is_no_error() -> None:
    result = run("validate", DEMO, stdout=None, preexec_fn=lambda: os.close(1))

    assert (result.returncode, result.stderr) == (0, b"")


def test_character_outside_the_encoding_is_escaped() -> None:
    result = run("plan", DEMO, stdout=subprocess.PIPE, env={**os.environ, "PYTHONIOENCODING": "iso8859-5"})

    assert (result.returncode, result.stderr) == (0, b"")
    assert b"demo \\xb7 " in result.stdout


def test_whether_the_reader_has_left_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    stream = PipeSafeStream(open(write, "wb"), encoding="utf-8")  # noqa: PTH123, SIM115
    monkeypatch.setattr(sys, "stdout", stream)
    assert not printing.is_pipe_closed()

    os.close(read)
    for _ in itertools.repeat(None, 2):
        stream.write("x\n")
        stream.flush()

    assert printing.is_pipe_closed()
    stream.close()


def test_console_without_a_reader_continues() -> None:
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    quiet = SafeConsole(file=Gone())
    quiet.print("one")
    quiet.print("two")

    assert quiet.quiet
