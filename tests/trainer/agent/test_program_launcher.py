"""Programs as real processes: what they receive, how they end, and what they may do wrong."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster.run_program import free_port
from trainingjob_agent import program_process
from trainingjob_agent.program_process import LAUNCHER
from trainingjob_api.protocol import Directive, Failure, FailureReason, HostReport, Phase
from trainingjob_api.spec.program import PLACEHOLDERS, Program, ProgramProgress
from trainingjob_api.world import Member, RunConfig, World

type Run = Callable[..., asyncio.Task[int]]
PYTHON = (sys.executable, "-S", "-u", "-c")
ADDRESS = "127.0.0.1"


def world(generation: int) -> World:
    """Return a world of the slices 0 and 3, in which the host of the tests is that of slice 3."""
    members = tuple(
        Member(process=process, slice=number, host=0, pod=uid, pod_uid=uid, address=ADDRESS)
        for process, (number, uid) in enumerate(((0, "another"), (3, "uid-0")))
    )
    return World(generation=generation, job_uid="job-1", coordinator=f"{ADDRESS}:1234", members=members)


@pytest.fixture
def run(launch, variables) -> Run:
    """Return a function that starts an agent whose spec has a program."""

    def start(
        *command: str, folder: str | None = None, grace: float = 20.0, pattern: str = "", steps: int | None = None
    ) -> asyncio.Task[int]:
        path = Path(variables["TRAININGJOB_CONFIG"])
        config = RunConfig.model_validate_json(path.read_bytes())
        progress = ProgramProgress(pattern=pattern) if pattern else None
        program = Program(command=command, working_directory=folder, progress=progress, steps=steps)
        layout = config.layouts[0].model_copy(update={"num_slices": 2, "devices_per_host": 4})
        spec = config.spec.model_copy(update={"program": program})
        path.write_text(config.model_copy(update={"spec": spec, "layouts": (layout,)}).model_dump_json(by_alias=True))
        variables["TRAININGJOB_GRACE_SECONDS"] = str(grace)
        return launch(list(LAUNCHER))

    return start


async def begin(operator) -> None:
    operator.patience_seconds = 20.0
    await operator.hear(lambda report: report.standby)
    await operator.say(Directive.TRAIN, world(1))


async def at_work(operator) -> None:
    await begin(operator)
    await operator.hear(lambda report: report.generation == 1 and report.phase is Phase.TRAINING)


async def the_end(operator) -> HostReport:
    return await operator.hear(lambda report: report.phase in (Phase.DONE, Phase.LEFT, Phase.FAILED))


async def the_failure(operator) -> Failure:
    report = await the_end(operator)
    assert report.failure
    return report.failure


def read_all(path: Path) -> list[str]:
    """Return the words of a file; none if there is no file."""
    return path.read_text().split() if path.exists() else []


def list_running(processes: list[str]) -> list[str]:
    """Return those of some processes that have a command line: a zombie has none."""
    return [one for one in processes if (path := Path("/proc", one, "cmdline")).exists() and path.read_bytes()]


EXITS = {
    "it never reports": ("print('at work')", Phase.DONE),
    "it forks, and the fork goes on": (
        "import os, time\nforked = os.fork()\nopen('forked', 'w').write(str(forked)) if forked else time.sleep(600)",
        Phase.DONE,
    ),
    "it exits with another code": ("raise SystemExit(3)", Phase.FAILED),
    "it closes its pipes": ("import os; os.closerange(1, 256)", Phase.DONE),
}


@pytest.mark.parametrize(("source", "final"), EXITS.values(), ids=EXITS.keys())
async def test_a_program_ends(source: str, final: Phase, run, operator, tmp_path) -> None:
    run(*PYTHON, source, folder=str(tmp_path))
    await begin(operator)

    assert (await the_end(operator)).phase is final
    assert list_running(read_all(tmp_path / "forked")) == []


LEAVES = {
    "it saves nothing": "import time; time.sleep(600)",
    "it saves and exits with 0": "import signal, sys, time\nsignal.signal(15, lambda *_: sys.exit())\ntime.sleep(600)",
    "it ignores SIGTERM": "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(600)",
}


@pytest.mark.thorough
@pytest.mark.parametrize("source", LEAVES.values(), ids=LEAVES.keys())
async def test_a_program_leaves(source: str, run, operator) -> None:
    run(*PYTHON, source, grace=1.0)
    await at_work(operator)
    await operator.say(Directive.LEAVE, world(1))

    assert (await the_end(operator)).phase is Phase.LEFT


async def test_a_program_starts_again_in_the_next_world(run, operator, tmp_path) -> None:
    place = str(tmp_path / "worlds")
    source = f"open({place!r}, 'a').write('{{generation}} '); import time; time.sleep(600 * (2 - {{generation}}))"
    run(*PYTHON, source)
    await at_work(operator)
    await operator.say(Directive.TRAIN, world(2))
    await operator.hear(lambda report: report.phase is Phase.DONE)

    assert read_all(tmp_path / "worlds") == ["1", "2"]


async def test_a_crash_has_the_end_of_the_log_without_secrets(run, operator, login) -> None:
    run(*PYTHON, "import os; raise RuntimeError('bad login correct-horse')")
    await begin(operator)
    failure = await the_failure(operator)

    assert (failure.reason, failure.exit_code, failure.fatal) == (FailureReason.CRASH, 1, False)
    assert failure.log.endswith("RuntimeError: bad login [redacted]")


NOT_STARTED = {
    "a command that is not installed": (
        ("no-such-program", "{process}"),
        None,
        ("spec.program.command", "no-such-program"),
        "cannot be started: No such file or directory. Is it installed in the image?",
    ),
    "a folder that does not exist": (
        PYTHON,
        "/no/such/folder",
        ("spec.program.workingDirectory", "/no/such/folder"),
        "the folder cannot be entered: No such file or directory.",
    ),
}


@pytest.mark.parametrize(("command", "folder", "place", "message"), NOT_STARTED.values(), ids=NOT_STARTED.keys())
async def test_a_program_that_cannot_start(command, folder, place, message, run, operator) -> None:
    run(*command, folder=folder)
    await begin(operator)
    failure = await the_failure(operator)

    assert (failure.reason, failure.fatal) == (FailureReason.CONFIG, True)
    assert ((failure.path, failure.value), failure.message) == (place, message)


async def test_a_program_receives_its_world(run, operator, monkeypatch, variables, tmp_path) -> None:
    variables["TRAININGJOB_COMPILE_CACHE"] = "/cache"
    for name, value in {**variables, "JAX_PROCESS_ID": "7", "MY_OWN": "kept", "XLA_FLAGS": "--mine"}.items():
        monkeypatch.setenv(name, value)
    told = tmp_path / "told.json"
    source = (
        f"import json, os, sys; json.dump([sys.argv[1:], sys.stdin.read(), dict(os.environ)], open({str(told)!r}, 'w'))"
    )
    run(*PYTHON, source, *(f"{name}={{{name}}}" for name in PLACEHOLDERS), "{unknown}", '{"a": 1}')
    await begin(operator)
    await the_end(operator)
    arguments, standard_input, environment = json.loads(told.read_text())

    assert standard_input == ""
    assert arguments == [
        "coordinator=127.0.0.1:1234",
        "devices=8",
        "devices_per_process=4",
        "generation=1",
        "process=1",
        "processes=2",
        "run_folder=/checkpoints/tiny",
        "slice=1",
        "slices=2",
        "{unknown}",
        '{"a": 1}',
    ]
    assert {name for name in environment if name.startswith("TRAININGJOB_")} == {
        "TRAININGJOB_EVENTS_FD",
        "TRAININGJOB_LEAVE_FILE",
        "TRAININGJOB_SLICE_MAP",
        *(f"TRAININGJOB_{name.upper()}" for name in PLACEHOLDERS),
    }
    assert environment["TRAININGJOB_SLICE_MAP"] == "0,1"
    assert environment["MY_OWN"] == "kept"
    assert environment["XLA_FLAGS"].endswith(" --mine")
    assert {name: environment[name] for name in environment if name.startswith(("JAX_", "OMPI_"))} == {
        "JAX_CHECK_PROXY_ENVS": "false",
        "JAX_COMPILATION_CACHE_DIR": "/cache",
        "JAX_COORDINATOR_ADDRESS": "127.0.0.1:1234",
        "JAX_COORDINATOR_BIND_ADDRESS": "127.0.0.1:1234",
        "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
        "JAX_LOCAL_DEVICE_IDS": "0,1,2,3",
        "JAX_NUM_CPU_DEVICES": "4",
        "JAX_NUM_PROCESSES": "2",
        "JAX_PLATFORMS": "cpu",
        "JAX_PROCESS_ID": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "0",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_MCA_orte_hnp_uri": "0.0;tcp://127.0.0.1:0",
    }


async def test_a_program_reports_its_steps_and_leaves_when_it_is_asked(run, operator) -> None:
    source = """
import signal, time
from trainingjob_program import report_saved, report_step, should_leave
signal.signal(signal.SIGTERM, lambda *_: print("a signal too", flush=True))
should_leave()
report_step(1, loss=2.5)
while not should_leave():
    time.sleep(0.01)
report_step(2, loss=float("nan"))
report_saved(2)
"""
    run(sys.executable, "-c", source, steps=10)
    await at_work(operator)
    await operator.hear(lambda report: report.progress)
    await operator.say(Directive.LEAVE, world(1))
    report = await the_end(operator)

    assert (report.phase, report.committed, report.restored, report.total_steps) == (Phase.LEFT, 2, 0, 10)
    assert report.progress
    assert (report.progress.step, report.progress.loss) == (2, None)


async def test_steps_are_read_in_the_log(run, operator) -> None:
    source = "print('step: 3, loss: 0.5'); print('no step'); print('step: 4, loss: 0.25'); print('saved: 4')"
    run(*PYTHON, source, pattern=r"step: (?P<step>\d+), loss: (?P<loss>\S+)|saved: (?P<saved>\d+)")
    await begin(operator)
    report = await the_end(operator)

    assert (report.phase, report.committed, report.restored) == (Phase.DONE, 4, 0)
    assert report.progress
    assert (report.progress.step, report.progress.loss) == (4, 0.25)


async def test_a_pattern_that_matches_no_line_finds_no_step(run, operator) -> None:
    run(*PYTHON, "print('step 3')", pattern=r"step: (?P<step>\d+)")
    await begin(operator)
    report = await the_end(operator)

    assert (report.phase, report.progress, report.restored, report.committed) == (Phase.DONE, None, None, None)


@pytest.mark.slow
async def test_a_program_that_initializes_jax_twice_fails_with_its_error(run, operator) -> None:
    address = f"{ADDRESS}:{free_port()}"
    alone = f"'{address}', num_processes=1, process_id=0, coordinator_bind_address='{address}'"
    source = f"from jax.distributed import initialize\ninitialize({alone})\ninitialize()"
    run(sys.executable, "-c", source)
    await begin(operator)
    failure = await the_failure(operator)

    assert (failure.reason, failure.exit_code, failure.fatal) == (FailureReason.CRASH, 1, False)
    assert failure.message == "the program exited with code 1; see the end of its log."
    assert "should only be called once" in failure.log


async def test_a_pattern_that_takes_too_long_is_dropped(run, operator, monkeypatch) -> None:
    monkeypatch.setattr(program_process, "MAX_SEARCH_SECONDS", 0.0)
    source = "import time; print('step: 3', flush=True); time.sleep(0.5); print('step: 4', flush=True)"
    run(*PYTHON, source, pattern=r"step: (?P<step>\d+)")
    await begin(operator)
    report = await the_end(operator)

    assert report.progress
    assert report.progress.step == 3


async def test_a_report_that_makes_no_sense_is_ignored(run, operator) -> None:
    source = "import os; os.write(int(os.environ['TRAININGJOB_EVENTS_FD']), b'{\"report\": {\"step\": -1}}\\n{]\\n')"
    run(*PYTHON, source)
    await begin(operator)
    report = await the_end(operator)

    assert (report.phase, report.progress) == (Phase.DONE, None)


def test_without_an_agent_the_calls_do_nothing() -> None:
    source = """
import os
for variables in ({}, {"TRAININGJOB_EVENTS_FD": "77"}):
    os.environ.update(variables)
    import trainingjob_program as program
    program.report_step(1)
    program.report_saved(1)
    assert not program.should_leave()
"""
    subprocess.run([sys.executable, "-c", source], check=True)
