"""Commands that need no cluster: their options and help texts."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainingjob_operator.cli.app import DAY_SECONDS, MAX_STEP, Accelerators, File, Files, PodProfiles, Presets, app
from trainingjob_operator.cli.errors import UsageError


@app.command()
def validate(
    files: Files, accelerators: Accelerators = None, presets: Presets = None, pod_profiles: PodProfiles = None
) -> None:
    """Validate TrainingJob files and list all problems.

    The checks are those of `kubectl apply`. The API server rejects values of a wrong type or form first, in its words.
    This command lists these problems together with all others.

    Exit codes: 0 all jobs are valid, 1 a job has a problem, 2 a file cannot be read or holds no job. Warnings do not
    count.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.validate_command import validate_files

    raise typer.Exit(validate_files(files, read_catalog(accelerators, presets, pod_profiles)))


@app.command()
def plan(
    file: File,
    as_json: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--json", help="Print JSON. Later versions add fields, but keep the names and meanings of existing ones."
        ),
    ] = False,
    diff: Annotated[
        str | None,
        typer.Option(metavar="OTHER", help="Print only the changes in spec and plan by the job of another file."),
    ] = None,
    compile_it: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--compile",
            help="Compile the train step of each size with the real compiler, and print its memory, FLOPs and traffic "
            "beside the estimates. This takes minutes and needs no device, but trainingjob[trainer], and for TPUs "
            "trainingjob[tpu-compile].",
        ),
    ] = False,
    tensors: Annotated[  # noqa: FBT002
        bool,
        typer.Option("--tensors", help="Print the tensors of the model instead: names, shapes and what is trained."),
    ] = False,
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Show the plan of a job for each allowed slice count.

    The plan has devices, mesh, batch, gradient accumulation, padding, memory and redundancy.

    Exit codes: 0 the job is valid, 1 it has problems, --diff found a difference, or a size did not compile, 2 a file
    cannot be read or does not hold one job.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.plan_command import print_plan

    catalog = read_catalog(accelerators, presets, pod_profiles)
    if tensors:
        from trainingjob_operator.cli.plan_tensors import print_tensors

        if diff is not None or compile_it:
            raise UsageError("--tensors must not be combined with --compile or --diff: print one plan at a time.")
        print_tensors(file, catalog, as_json=as_json)
        return
    if compile_it:
        from trainingjob_operator.cli.plan_compile import print_compiled

        if diff is not None:
            raise UsageError("--compile and --diff must not be combined: compile one plan at a time.")
        if not print_compiled(file, catalog, as_json=as_json):
            raise typer.Exit(1)
        return
    if diff is None:
        print_plan(file, catalog, as_json=as_json)
        return
    from trainingjob_operator.cli.plan_diff import print_diff

    if print_diff(file, diff, catalog, as_json=as_json):
        raise typer.Exit(1)


@app.command()
def explain(
    field: Annotated[
        str, typer.Argument(metavar="[FIELD]", help="Path such as spec.training.steps; `spec.` can be omitted.")
    ] = "",
    recursive: Annotated[  # noqa: FBT002
        bool, typer.Option("--recursive", "-r", help="Also explain all fields below it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002
) -> None:
    """Explain a field of the spec.

    The output has its meaning, type, unit, bounds, default and rules, and whether it can change while the job lives.

    Exit codes: 0 the field is explained, 2 there is no such field.
    """
    from trainingjob_operator.cli.explain import explain_field

    explain_field(field, recursive=recursive, as_json=as_json)


@app.command()
def presets(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Name of a preset. Default: all.")] = None,
    output: Annotated[
        Literal["json", "yaml"] | None,
        typer.Option("--output", "-o", help="Print JSON or YAML. Later versions add fields, but keep existing ones."),
    ] = None,
    added: Presets = None,
) -> None:
    """List the published models that are presets, or print the model section of one.

    The table has the parameters, those that are active for a token, layers, width, longest sequence and source.

    Exit codes: 0 the presets are printed, 2 there is no such preset.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.presets_command import print_presets

    print_presets(name, output, read_catalog(None, added).presets)


@app.command()
def convert(
    file: Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON file; `-` is standard input.")],
    source: Annotated[
        Literal["maxtext", "levanter", "huggingface"] | None,
        typer.Option("--from", help="Program that the file belongs to. Default: recognized by its keys."),
    ] = None,
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Print a TrainingJob with the model and the training of another program's config.

    The file is a config of MaxText or Levanter, or the config.json of a Hugging Face model. Comments name what to fill
    in, such as slices and volumes, and list each line that has no counterpart, with the reason.

    Exit codes: 0 the job is valid, 1 it has problems or no model section expresses the model, 2 the file cannot be
    read.
    """
    from trainingjob_operator.cli.convert.convert_command import convert_file
    from trainingjob_operator.cli.documents import read_catalog

    raise typer.Exit(convert_file(file, source, read_catalog(accelerators, presets, pod_profiles)))


@app.command()
def render(
    file: File,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write one file per object into this folder.")
    ] = None,
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Print the child objects that the operator creates for a job.

    Names end in a hash of the job's UID, which only the API server assigns.

    Exit codes: 0 the job is valid, 1 it has problems, 2 a file cannot be read or written, or does not hold one job.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.render import render_file

    render_file(file, output, read_catalog(accelerators, presets, pod_profiles))


@app.command()
def run(
    file: File,
    slices: Annotated[
        int | None,
        typer.Option("--slices", min=1, help="Maximum number of slices to start. Default: the spec's maximum."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Folder of all files. Default: trainingjob-runs/NAME."),
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=FOLDER", help="Folder that replaces a volume. Default: a folder below DIR."),
    ] = None,
    fresh: Annotated[  # noqa: FBT002
        bool, typer.Option("--fresh", help="Delete the checkpoints of earlier runs and restart at step 0.")
    ] = False,
    kill_slice: Annotated[
        list[int] | None,
        typer.Option(
            min=0, help="Inject a failure: kill all processes of this slice. Needs --at-step; can be repeated."
        ),
    ] = None,
    at_step: Annotated[list[int] | None, typer.Option(min=0, help="Step at which to kill the slice.")] = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Train on this machine, without a cluster.

    The run uses the same plan, rendezvous, agents and trainer as a cluster, with one process per host. Ctrl-C saves and
    stops; the same command resumes. Paths below a volume's mount path are moved to the folder that replaces the volume.
    Other paths are not changed.
    """
    from trainingjob_operator.cli.console import SafeConsole
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.local.run import Options, run_file
    from trainingjob_operator.cli.local.runner import ScheduledKill

    if len(kill_slice or ()) != len(at_step or ()):
        raise UsageError("--kill-slice and --at-step must be given equally often.")
    faults = [ScheduledKill(number, step) for number, step in zip(kill_slice or (), at_step or (), strict=True)]
    options = Options(num_slices=slices, folder=folder, volumes=volume or (), fresh=fresh, faults=faults)
    raise typer.Exit(run_file(file, options, read_catalog(None, presets, pod_profiles), SafeConsole()))


@app.command("import")
def import_weights(
    folder: Annotated[str, typer.Argument(help="Folder or URI with config.json and safetensors files.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002
    show_all: Annotated[bool, typer.Option("--all", help="List all tensors that do not fit.")] = False,  # noqa: FBT002
) -> None:
    """Print the `model` section of published weights in the format of Hugging Face, and check their files.

    A job with this section starts from the folder by `checkpoint.initializeFrom.huggingFace.path`. The report on
    standard error lists tensors that are missing, have another shape, or are not used.

    Exit codes: 0 a job can start from the folder, 1 tensors are missing or do not fit, 2 the folder cannot be read or
    its model is not supported.
    """
    from trainingjob_operator.cli.weights import import_folder

    if not import_folder(folder, as_json=as_json, show_all=show_all):
        raise typer.Exit(1)


@app.command("export")
def export_weights(
    file: File,
    target: Annotated[
        str, typer.Argument(metavar="FOLDER", help="Folder or URI to write. Weights in it are replaced.")
    ],
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="CHECKPOINTS", help="Folder or URI. Default: spec.checkpoint.uri."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, max=MAX_STEP, help="Step to export. Default: the newest that passes verification."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Format of the numbers: float32, bfloat16 or float16. Default: that of the job's export."),
    ] = None,
    adapter: Annotated[
        str | None,
        typer.Option(
            help="Adapters of LoRA: merged into the model, or peft, alone. Default: that of the job's export."
        ),
    ] = None,
    max_file_size: Annotated[
        int, typer.Option(metavar="BYTES", min=1, help="Size of the largest file, unless one tensor is larger.")
    ] = 5_000_000_000,
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Export a checkpoint in the format of Hugging Face, for transformers and vLLM.

    It needs no device, and memory for a few tensors. The folder gets safetensors files, config.json, and the tokenizer
    and the generation options of the weights that the job started from.

    Exit codes: 0 the folder is complete, 1 the job has problems or no architecture computes its model, 2 a file cannot
    be read or written, or the step is damaged.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.weights import ExportOptions, export_checkpoint

    options = ExportOptions(source, step, dtype, max_file_size, adapter)
    export_checkpoint(file, target, options, read_catalog(accelerators, presets, pod_profiles))


@app.command()
def simulate(
    file: File,
    mtbf: Annotated[str, typer.Option(help="Mean time between two faults of one slice, such as 30d or 12h.")] = "30d",
    repair: Annotated[
        str,
        typer.Option(
            help="Median time until a lost slice has nodes again. The distribution is heavy-tailed: the mean is 6.6 "
            "times the median."
        ),
    ] = "20h",
    time: Annotated[
        str | None,
        typer.Option(help="Maximum simulated time of one run. Default: until the job is over.", show_default=False),
    ] = None,
    step_seconds: Annotated[
        float | None,
        typer.Option(
            min=1e-6,
            max=DAY_SECONDS,
            help="Duration of a step at the largest size. Default: the expected one of the plan.",
        ),
    ] = None,
    save_seconds: Annotated[
        float, typer.Option(min=0, max=DAY_SECONDS, help="Time from a step to the commit of its checkpoint.")
    ] = 30.0,
    restart_seconds: Annotated[
        float,
        typer.Option(
            min=0, max=DAY_SECONDS, help="Time from a new world to its first step: connect, restore, load programs."
        ),
    ] = 10.0,
    start_seconds: Annotated[
        float, typer.Option(min=0, max=DAY_SECONDS, help="Time from available nodes to hosts that can join a world.")
    ] = 120.0,
    slices: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of slices. Default: the value in the file.", show_default=False),
    ] = None,
    spares: Annotated[int, typer.Option(min=0, max=256, help="Spare slices that replace lost ones.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the random faults.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,  # noqa: FBT002
    accelerators: Accelerators = None,
    presets: Presets = None,
    pod_profiles: PodProfiles = None,
) -> None:
    """Simulate a job under random faults, and compare changes of its spec.

    Each run lasts until the job is over. A short job runs several times, until about 60 faults have happened. The
    decisions are those of the operator. Of 20 faults, 12 take a slice's nodes without notice and 2 after two minutes'
    notice. 4 end a program, 1 hangs it, and 1 cuts a host off from the operator. Of 20 losses, 1 also takes
    neighbouring slices. Repair times are lognormal, as in a public trace of 400 GPU servers: the median is hours, the
    mean days. The operator is down for 5 minutes per month. The same faults are then repeated with one change each:
    steps between checkpoints, minimum number of slices, snapshots, restarts, spare slices.

    Exit codes: 0 the job was simulated, 1 it has problems, 2 the command or the file is invalid.
    """
    from trainingjob_operator.cli.documents import read_catalog
    from trainingjob_operator.cli.simulate import Options, simulate_file
    from trainingjob_operator.core.simulate.durations import Durations

    durations = Durations({}, pod_start=start_seconds, world_join=restart_seconds, save=save_seconds)
    options = Options(mtbf, repair, time, step_seconds, durations, slices, spares, seed)
    simulate_file(file, read_catalog(accelerators, presets, pod_profiles), options, as_json=as_json)
