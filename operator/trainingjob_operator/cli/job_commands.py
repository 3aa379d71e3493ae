"""Commands for a job on a cluster: their options and help texts."""

from typing import Annotated, Literal

import typer

from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_operator.cli.app import MAX_WAIT_SECONDS, Kubeconfig, KubeContext, Name, Namespace, app
from trainingjob_operator.cli.printing import echo

Hosts = Literal["first", "all"]
"""`TracedHosts`, without an import of the spec: help answers at once."""


@app.command()
def status(
    name: Name,
    namespace: Namespace = None,
    watch: Annotated[  # noqa: FBT002
        bool, typer.Option("--watch", "-w", help="Refresh the status until the job is over.")
    ] = False,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the status and history of a job.

    The report lists phase and reason, progress, checkpoints, every world with its end, and the goodput.
    """
    from trainingjob_operator.cli.console import SafeConsole
    from trainingjob_operator.cli.remote_job import Target
    from trainingjob_operator.cli.status import show_status

    show_status(Target(name, namespace, context, kubeconfig), SafeConsole(), watch=watch)


@app.command()
def logs(
    name: Name,
    namespace: Namespace = None,
    follow: Annotated[  # noqa: FBT002
        bool, typer.Option("--follow", "-f", help="Print new lines until the job is over.")
    ] = False,
    slice_number: Annotated[int | None, typer.Option("--slice", min=0, help="Only this slice.")] = None,
    host: Annotated[int | None, typer.Option("--host", min=0, help="Only this host of each slice.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only the last lines of each host.")] = None,
    raw: Annotated[  # noqa: FBT002
        bool, typer.Option("--raw", help="Print control characters and colours unchanged.")
    ] = False,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the logs of a job's hosts.

    Each line begins with its slice and host. With -f, the output includes hosts that start later.
    """
    from trainingjob_operator.cli.pod_logs import LogSelection, show_logs
    from trainingjob_operator.cli.remote_job import Target

    target = Target(name, namespace, context, kubeconfig)
    show_logs(target, LogSelection(slice_number, host, tail), typer.echo if raw else echo, follow=follow)


@app.command()
def profile(
    name: Name,
    namespace: Namespace = None,
    steps: Annotated[int, typer.Option(min=1, max=100, help="Steps of the trace.")] = 3,
    host: Annotated[Hosts, typer.Option(help="The first host of the world, or all hosts.")] = "first",
    timeout: Annotated[
        float,
        typer.Option(min=1, max=MAX_WAIT_SECONDS, metavar="SECONDS", help="Time limit for the traces of all hosts."),
    ] = 600,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Trace the next steps of a running job, without interrupting it.

    The traces are below `checkpoint.uri`/profiles. The command prints how to open them.

    Exit codes: 0 all traces are written, 1 one is not, or the job does not train, 2 no result within --timeout.
    """
    from trainingjob_api.inspection import InspectionKind
    from trainingjob_operator.cli.inspection import InspectionOptions, inspect
    from trainingjob_operator.cli.remote_job import Target

    options = InspectionOptions(InspectionKind.TRACE, host, steps)
    raise typer.Exit(inspect(Target(name, namespace, context, kubeconfig), options, timeout))


@app.command()
def stacks(
    name: Name,
    namespace: Namespace = None,
    host: Annotated[Hosts, typer.Option(help="The first host of the world, or all hosts.")] = "all",
    timeout: Annotated[
        float,
        typer.Option(min=1, max=MAX_WAIT_SECONDS, metavar="SECONDS", help="Time limit for the stacks of all hosts."),
    ] = 60,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print the thread stacks of a job's trainers. The job continues.

    A host that hangs dumps its stacks too. Compare the newest line of Python in all hosts.

    Exit codes: 0 all hosts are printed, 1 the job does not train, 2 no result within --timeout.
    """
    from trainingjob_api.inspection import InspectionKind
    from trainingjob_operator.cli.inspection import InspectionOptions, inspect
    from trainingjob_operator.cli.remote_job import Target

    options = InspectionOptions(InspectionKind.STACKS, host)
    raise typer.Exit(inspect(Target(name, namespace, context, kubeconfig), options, timeout))


@app.command()
def wait(
    name: Name,
    namespace: Namespace = None,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, max=MAX_WAIT_SECONDS, metavar="SECONDS", help="Time limit of the wait. Default: none."),
    ] = None,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait until a job is over.

    Each change of the job's state is one line. Unlike `kubectl wait`, the command also ends when the job fails.

    Exit codes: 0 the job succeeded, 1 it failed, 2 it was not over in time, or the cluster could not be reached.
    """
    from trainingjob_operator.cli.remote_job import Target
    from trainingjob_operator.cli.wait import wait_for_end

    raise typer.Exit(wait_for_end(Target(name, namespace, context, kubeconfig), timeout))


@app.command()
def scale(
    name: Name,
    min_slices: Annotated[int | None, typer.Option("--min", min=1, help="Minimum number of slices.")] = None,
    max_slices: Annotated[int | None, typer.Option("--max", min=1, help="Maximum number of slices.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Fixed number of slices.")] = None,
    namespace: Namespace = None,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change the allowed slice counts of a job.

    If the current size is no longer allowed, the job saves, drains and resumes at an allowed size. It loses no step.

    Exit codes: 0 the job is changed, 1 the change is rejected, 2 the command is invalid.
    """
    from trainingjob_operator.cli.job_edits import scale as scale_job
    from trainingjob_operator.cli.remote_job import Target

    scale_job(Target(name, namespace, context, kubeconfig), {"min": min_slices, "max": max_slices, "count": count})


@app.command()
def suspend(
    name: Name, namespace: Namespace = None, context: KubeContext = None, kubeconfig: Kubeconfig = None
) -> None:
    """Suspend a job: it saves and releases all its pods.

    The checkpoints stay. `resume` continues from the newest one.
    """
    from trainingjob_operator.cli.job_edits import set_suspend
    from trainingjob_operator.cli.remote_job import Target

    set_suspend(Target(name, namespace, context, kubeconfig), suspend=True)


@app.command()
def resume(name: Name, namespace: Namespace = None, context: KubeContext = None, kubeconfig: Kubeconfig = None) -> None:
    """Resume a suspended job from its newest checkpoint."""
    from trainingjob_operator.cli.job_edits import set_suspend
    from trainingjob_operator.cli.remote_job import Target

    set_suspend(Target(name, namespace, context, kubeconfig), suspend=False)


@app.command()
def drill(
    name: Name,
    kind: Annotated[DrillKind, typer.Argument(help="Kind of the fault.")],
    slice_number: Annotated[
        int | None,
        typer.Option("--slice", min=0, help="Slice that gets the fault. Default: the last one of the world."),
    ] = None,
    host: Annotated[int | None, typer.Option(min=0, help="Host of the slice. Default: the last one.")] = None,
    seconds: Annotated[int, typer.Option(min=1, max=3600, help="Duration of a temporary fault.")] = DRILL_SECONDS,
    timeout: Annotated[
        float,
        typer.Option(min=1, max=MAX_WAIT_SECONDS, metavar="SECONDS", help="Time limit for the result of the drill."),
    ] = 600,
    namespace: Namespace = None,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Inject a fault into a job, and measure the recovery.

    The job must allow drills with `elastic: {faultInjection: allowed}`. The fault is real and injected once. It counts
    neither as a failure of the program nor as a fault of a node. The command prints its cost beside earlier drills.

    Exit codes: 0 the job recovered, 1 the drill was refused or had no result, 2 no result within --timeout.
    """
    from trainingjob_operator.cli.drill import DrillOptions
    from trainingjob_operator.cli.drill import drill as drill_job
    from trainingjob_operator.cli.remote_job import Target

    target = Target(name, namespace, context, kubeconfig)
    raise typer.Exit(drill_job(target, DrillOptions(kind, slice_number, host, seconds), timeout))
