"""Commands for a job on a cluster: their options and help texts."""

from typing import Annotated

import typer

from trainingjob_api.drill_kinds import DRILL_SECONDS, DrillKind
from trainingjob_operator.cli.app import Kubeconfig, KubeContext, Name, Namespace, app
from trainingjob_operator.cli.printing import echo


@app.command()
def status(
    name: Name,
    namespace: Namespace = None,
    watch: Annotated[  # noqa: FBT002
        bool, typer.Option("--watch", "-w", help="Keep it on the screen until the job is over.")
    ] = False,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what a job does and what happened to it.

    Its phase and why, its progress, its checkpoints, every world it trained in, and where the time went.
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
        bool, typer.Option("--follow", "-f", help="Print new lines as they come, until the job is over.")
    ] = False,
    slice_number: Annotated[int | None, typer.Option("--slice", min=0, help="Only this slice.")] = None,
    host: Annotated[int | None, typer.Option("--host", min=0, help="Only this host of each slice.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only the last lines of each host.")] = None,
    raw: Annotated[  # noqa: FBT002
        bool, typer.Option("--raw", help="Print control characters, colours too, as the hosts wrote them.")
    ] = False,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Print what the hosts of a job write.

    Each line stands behind its slice and host. With -f, hosts that come later join in.
    """
    from trainingjob_operator.cli.pod_logs import LogSelection, show_logs
    from trainingjob_operator.cli.remote_job import Target

    target = Target(name, namespace, context, kubeconfig)
    show_logs(target, LogSelection(slice_number, host, tail), typer.echo if raw else echo, follow=follow)


@app.command()
def wait(
    name: Name,
    namespace: Namespace = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Give up after this. Default: never.")
    ] = None,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Wait until a job is over.

    Each change of its state is a line. Unlike `kubectl wait`, it also ends when the job fails.

    Exit codes: 0 it succeeded, 1 it failed, 2 it was not over in time, or the cluster could not be asked any more.
    """
    from trainingjob_operator.cli.remote_job import Target
    from trainingjob_operator.cli.wait import wait_for_end

    raise typer.Exit(wait_for_end(Target(name, namespace, context, kubeconfig), timeout))


@app.command()
def scale(
    name: Name,
    fewest: Annotated[int | None, typer.Option("--min", min=1, help="The fewest slices to train on.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="The most slices to train on.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="A fixed number of slices instead.")] = None,
    namespace: Namespace = None,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Change how many slices a job may train on.

    A job that trains at a size that is no longer allowed saves, leaves and goes on at one that is; no step is lost.

    Exit codes: 0 it is changed, 1 it is refused, 2 the command was not understood.
    """
    from trainingjob_operator.cli.job_edits import scale as scale_job
    from trainingjob_operator.cli.remote_job import Target

    scale_job(Target(name, namespace, context, kubeconfig), {"min": fewest, "max": most, "count": count})


@app.command()
def suspend(
    name: Name, namespace: Namespace = None, context: KubeContext = None, kubeconfig: Kubeconfig = None
) -> None:
    """Let a job save and give all its pods back.

    It keeps its checkpoints; `resume` lets it go on from there.
    """
    from trainingjob_operator.cli.job_edits import set_suspend
    from trainingjob_operator.cli.remote_job import Target

    set_suspend(Target(name, namespace, context, kubeconfig), suspend=True)


@app.command()
def resume(name: Name, namespace: Namespace = None, context: KubeContext = None, kubeconfig: Kubeconfig = None) -> None:
    """Let a suspended job go on from its newest checkpoint."""
    from trainingjob_operator.cli.job_edits import set_suspend
    from trainingjob_operator.cli.remote_job import Target

    set_suspend(Target(name, namespace, context, kubeconfig), suspend=False)


@app.command()
def drill(
    name: Name,
    kind: Annotated[DrillKind, typer.Argument(help="What is done to it.")],
    slice_number: Annotated[
        int | None, typer.Option("--slice", min=0, help="To which slice. Default: the last of the world.")
    ] = None,
    host: Annotated[int | None, typer.Option(min=0, help="To which host of it. Default: the last.")] = None,
    seconds: Annotated[int, typer.Option(min=1, max=3600, help="How long what passes lasts.")] = DRILL_SECONDS,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long to wait for what it costs.")] = 600,
    namespace: Namespace = None,
    context: KubeContext = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Let a job suffer a fault, and measure how it comes back.

    The job must allow it with `elastic: {drills: allowed}`. The fault is real, made once, and held against neither the
    program nor a node. What it cost is printed beside the drills before it.

    Exit codes: 0 the job trains again, 1 the drill is refused or nothing came of it, 2 that took longer than --timeout.
    """
    from trainingjob_operator.cli.drill import DrillOptions
    from trainingjob_operator.cli.drill import drill as drill_job
    from trainingjob_operator.cli.remote_job import Target

    target = Target(name, namespace, context, kubeconfig)
    raise typer.Exit(drill_job(target, DrillOptions(kind, slice_number, host, seconds), timeout))
