"""The demo: a real cluster, a real job, a node failure and recovery, and the job's report.

`python -m e2e.demo` prints every state. `e2e.benchmarks.demo` runs the same scenario and keeps only its measurements.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from e2e.cluster.interface import Cluster
from e2e.cluster.select_cluster import open_cluster
from e2e.node_faults import power_off_nodes, slice_nodes
from e2e.product import Job, JourneyError, Manifest, Product, load_example
from e2e.status import generation_of, is_full, step_of, steps_trained

NAMESPACE = "demo"
FIRST_STEP_TIMEOUT = 180
CHANGE_TIMEOUT = 180
END_TIMEOUT = 900
STEPS_BEFORE_A_FAULT = 20

type Say = Callable[[str], None]


@dataclass(frozen=True)
class SliceOutage:
    """One slice lost and restored. Times are in seconds since the epoch."""

    slice: int
    killed: float
    restored: float
    shrunk_generation: int
    grown_generation: int


@dataclass(frozen=True)
class ScenarioResult:
    """The events of a demo."""

    applied: float
    faults: tuple[SliceOutage, ...]
    ended: float


class StatusPrinter:
    """Prints the job's row of `kubectl get trainingjobs` whenever it changes."""

    def __init__(self, console: Console, job: Job) -> None:
        self.console = console
        self.job = job
        self.last = ""

    def print_changes(self) -> None:
        """Print the job's row of `kubectl get trainingjobs` if it has changed since the last call."""
        table = self.job.cluster.kubectl("get", "trainingjobs", "-n", self.job.namespace)
        row = table.rpartition(" ")[0]  # AGE always changes
        if row != self.last:
            self.last = row
            self.console.print(table.strip(), highlight=False)

    def watch(self, what: str, holds: Callable[[Manifest], object], timeout: float) -> Manifest:
        """Wait until a condition on the status holds, and print every change of the row."""

        def holds_and_look(status: Manifest) -> object:
            self.print_changes()
            return holds(status)

        return self.job.wait(what, holds_and_look, timeout)


def run_scenario(product: Product, job: Job, faults: tuple[int, ...], console: Console) -> ScenarioResult:
    """Watch a job from its first step to its end, and lose and restore some slices on the way."""
    applied = time.time()
    printer = StatusPrinter(console, job)
    printer.watch("its first step", lambda status: step_of(status) >= 1, FIRST_STEP_TIMEOUT)
    outages = tuple(lose_and_restore_slice(product, job, slice_number, printer) for slice_number in faults)
    printer.watch("the end", lambda status: status.get("phase") in ("Succeeded", "Failed"), END_TIMEOUT)
    return ScenarioResult(applied, outages, time.time())


def lose_and_restore_slice(product: Product, job: Job, slice_number: int, printer: StatusPrinter) -> SliceOutage:
    """Power off one slice's nodes during training and restore them; wait for the smaller and the larger world."""
    start = step_of(job.status())
    before = printer.watch(
        "steady training",
        lambda status: is_full(status) and step_of(status) >= start + STEPS_BEFORE_A_FAULT,
        CHANGE_TIMEOUT,
    )
    nodes = slice_nodes(job, slice_number)
    printer.console.print(f"\n[bold]The power of {' and '.join(nodes)} (slice {slice_number}) goes off.[/bold]")
    killed = time.time()
    with power_off_nodes(product.cluster, nodes):
        shrunk = printer.watch(
            "a step of the smaller world",
            lambda status: generation_of(status) > generation_of(before) and steps_trained(status) > 0,
            CHANGE_TIMEOUT,
        )
        printer.console.print(f"\n[bold]Trained on without slice {slice_number}. Its nodes get power again.[/bold]")
        restored = time.time()
    grown = printer.watch(
        "the larger world",
        lambda status: is_full(status) and generation_of(status) > generation_of(shrunk) and step_of(status) > 0,
        CHANGE_TIMEOUT,
    )
    return SliceOutage(slice_number, killed, restored, generation_of(shrunk), generation_of(grown))


def prepare(console: Console) -> tuple[Cluster, Product]:
    """Start the cluster with this checkout's images, and install the operator."""
    cluster = open_cluster()
    console.rule("a Kubernetes cluster")
    cluster.up()
    console.rule("helm install")
    product = Product(cluster)
    product.install()
    console.print(cluster.kubectl("get", "nodes"), highlight=False)
    return cluster, product


def main() -> int:
    """Run the demo and leave the cluster running; return the exit code."""
    console = Console()
    started = time.monotonic()
    cluster, product = prepare(console)
    console.rule("kubectl apply -f crds/examples/demo.yaml")
    product.make_namespace(NAMESPACE)
    Job(cluster, NAMESPACE, "demo").delete()
    product.run_in_reader(NAMESPACE, "find", "/shared", "-mindepth", "1", "-delete")
    job = product.submit(NAMESPACE, load_example("demo"))
    try:
        run_scenario(product, job, faults=(1,), console=console)
    except JourneyError as error:
        console.print(f"[red]{error}[/red]")
        return 1
    console.rule("the report")
    report(console, job)
    console.print(f"\nThe demo took {time.monotonic() - started:.0f} s. The cluster is still up; look around with")
    console.print(f"  export KUBECONFIG={cluster.kubeconfig()}", highlight=False, soft_wrap=True)
    console.print("  make demo-down      removes it without a trace")
    return 0 if job.status().get("phase") == "Succeeded" else 1


def report(console: Console, job: Job) -> None:
    """Print the job's `trainingjob status`."""
    command = [str(Path(sys.executable).parent / "trainingjob"), "status", job.name, "--namespace", job.namespace]
    environment = os.environ | {"KUBECONFIG": str(job.cluster.kubeconfig())}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    console.print(done.stdout.strip(), highlight=False)


if __name__ == "__main__":
    sys.exit(main())
