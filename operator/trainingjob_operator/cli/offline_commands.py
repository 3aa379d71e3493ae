"""Commands that need no cluster: their options and help texts."""

from pathlib import Path
from typing import Annotated

import typer

from trainingjob_operator.cli.app import Accelerators, File, Files, app
from trainingjob_operator.cli.errors import UsageError


@app.command()
def validate(files: Files, accelerators: Accelerators = None) -> None:
    """Find all problems of TrainingJob files.

    The verdict is the same as at `kubectl apply`, in the same words; every file gets its own.

    Exit codes: 0 all jobs are valid, 1 one has a problem, 2 a file cannot be read or holds no job. Warnings do not
    count.
    """
    from trainingjob_operator.cli.hardware_option import read_hardware
    from trainingjob_operator.cli.validate_command import validate_files

    raise typer.Exit(validate_files(files, read_hardware(accelerators)))


@app.command()
def plan(
    file: File,
    as_json: Annotated[  # noqa: FBT002
        bool, typer.Option("--json", help="Print JSON. Fields are added to it, but keep their names and meanings.")
    ] = False,
    diff: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Print only what the job of another file changes: its spec and its plan."),
    ] = None,
    compile_it: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--compile",
            help="Compile the train step of each size with the real compiler, which needs no device but minutes, and "
            "print its memory, FLOPs and traffic beside the estimates. Needs trainingjob[trainer]; for TPUs also "
            "trainingjob[tpu-compile].",
        ),
    ] = False,
    accelerators: Accelerators = None,
) -> None:
    """Show what a job comes to at each size.

    For every number of slices that the job may run on: devices, mesh, batch, accumulation, padding and memory.

    Exit codes: 0 the job is valid, 1 it has problems, --diff found a difference, or a size did not compile, 2 a file
    cannot be read or does not hold one job.
    """
    from trainingjob_operator.cli.hardware_option import read_hardware
    from trainingjob_operator.cli.plan_command import print_plan

    hardware = read_hardware(accelerators)
    if compile_it:
        from trainingjob_operator.cli.plan_compile import print_compiled

        if diff is not None:
            raise UsageError("--compile and --diff do not go together: compile one plan at a time.")
        if not print_compiled(file, hardware, as_json=as_json):
            raise typer.Exit(1)
        return
    if diff is None:
        print_plan(file, hardware, as_json=as_json)
        return
    from trainingjob_operator.cli.plan_diff import print_diff

    if print_diff(file, diff, hardware, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def explain(
    field: Annotated[
        str, typer.Argument(metavar="[FIELD]", help="A path such as spec.training.steps; `spec.` may be left out.")
    ] = "",
    recursive: Annotated[  # noqa: FBT002
        bool, typer.Option("--recursive", "-r", help="Explain all fields below it too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002
) -> None:
    """Explain a field of the spec.

    Its meaning, type, unit, bounds and default, the rules that look at it, and whether it may change while the job
    lives.

    Exit codes: 0 it is explained, 2 there is no such field.
    """
    from trainingjob_operator.cli.explain import explain_field

    explain_field(field, recursive=recursive, as_json=as_json)


@app.command()
def render(
    file: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write one file an object into this folder.")
    ] = None,
    accelerators: Accelerators = None,
) -> None:
    """Print the objects that a job becomes.

    They are what the operator would create. Names end in a hash of the job's UID, which only the API server can give.

    Exit codes: 0 the job is valid, 1 it has problems, 2 a file cannot be read or written, or does not hold one job.
    """
    from trainingjob_operator.cli.hardware_option import read_hardware
    from trainingjob_operator.cli.render import render_file

    render_file(file, output, read_hardware(accelerators))


@app.command()
def run(
    file: File,
    slices: Annotated[
        int | None, typer.Option("--slices", min=1, help="The most slices to start. Default: the spec's own.")
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where all files go. Default: trainingjob-runs/NAME."),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="The folder that stands for a volume. Default: one below DIR."),
    ] = None,
    fresh: Annotated[  # noqa: FBT002
        bool, typer.Option("--fresh", help="Delete the checkpoints of earlier runs and begin at step 0.")
    ] = False,
    kill_slice: Annotated[
        list[int] | None,
        typer.Option(min=0, help="Try a failure: kill all processes of this slice. Needs --at-step; may be repeated."),
    ] = None,
    at_step: Annotated[list[int] | None, typer.Option(min=0, help="When to kill it.")] = None,
) -> None:
    """Train on this machine, without a cluster.

    The same plan, rendezvous, agents and trainer as in a cluster, one process a host. Ctrl-C saves and stops; the same
    command goes on from there. Paths below a volume's mount path are moved to the folder that stands for the volume;
    other paths are read as they are.
    """
    from trainingjob_operator.cli.console import SafeConsole
    from trainingjob_operator.cli.local.run import Options, run_file
    from trainingjob_operator.cli.local.runner import ScheduledKill

    if len(kill_slice or ()) != len(at_step or ()):
        raise UsageError("--kill-slice and --at-step belong together: give both, as often as each other.")
    faults = [ScheduledKill(number, step) for number, step in zip(kill_slice or (), at_step or (), strict=True)]
    options = Options(num_slices=slices, folder=folder, volumes=volume or (), fresh=fresh, faults=faults)
    raise typer.Exit(run_file(file, options, SafeConsole()))


@app.command()
def simulate(
    file: File,
    mtbf: Annotated[str, typer.Option(help="Mean time between two faults of one slice, such as 30d or 12h.")] = "30d",
    repair: Annotated[
        str,
        typer.Option(
            help="Median time until a lost slice has nodes again. The times are heavy-tailed: the mean is 6.6 "
            "times as long."
        ),
    ] = "20h",
    time: Annotated[
        str | None,
        typer.Option(help="The longest to simulate one run. Default: until the job is over.", show_default=False),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(min=1e-6, help="A step at the largest size. Default: the plan's estimate, a lower bound."),
    ] = None,
    save_seconds: Annotated[float, typer.Option(min=0, help="From a step to the commit of its checkpoint.")] = 30.0,
    restart_seconds: Annotated[
        float, typer.Option(min=0, help="From a new world to its first step: connect, restore, load programs.")
    ] = 10.0,
    start_seconds: Annotated[
        float, typer.Option(min=0, help="From nodes that are there to hosts that could train.")
    ] = 120.0,
    slices: Annotated[
        int | None,
        typer.Option(min=1, help="The most slices the job has. Default: as the file says.", show_default=False),
    ] = None,
    spares: Annotated[int, typer.Option(min=0, help="Slices that stand by for lost ones.")] = 0,
    seed: Annotated[int, typer.Option(help="Another number, other faults.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002
    accelerators: Accelerators = None,
) -> None:
    """Show how a job would fare under faults, and what would help.

    Each run lasts until the job is over; a short job is run several times, until about 60 faults have happened. Faults
    strike slices at random, and the operator's own rules decide what happens. Of 20 faults 12 take a slice's nodes
    without notice and 2 after two minutes' notice, 4 end a program, 1 hangs it, 1 cuts a host off from the operator.
    Of 20 losses 1 takes neighbouring slices too. Repair times are lognormal, as in a public trace of 400 GPU servers:
    the median is hours, the mean days. The operator is away for 5 minutes a month. Then the same faults again with one
    thing changed: the steps between checkpoints, the fewest slices, snapshots, restarts, spare slices.

    Exit codes: 0 it was simulated, 1 the job has problems, 2 the command or the file cannot be understood.
    """
    from trainingjob_operator.cli.hardware_option import read_hardware
    from trainingjob_operator.cli.simulate import Options, simulate_file
    from trainingjob_operator.core.simulate.durations import Durations

    pace = Durations({}, pod_start=start_seconds, world_join=restart_seconds, save=save_seconds)
    options = Options(mtbf, repair, time, step_seconds, pace, slices, spares, seed)
    simulate_file(file, read_hardware(accelerators), options, as_json=as_json)
