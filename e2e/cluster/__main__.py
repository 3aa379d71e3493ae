"""The local cluster's command line: `python -m e2e.cluster VERB`. Every verb may be repeated."""

import argparse
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from e2e.cluster.binaries import binaries_dir
from e2e.cluster.local import LocalCluster
from e2e.cluster.paths import KUBECONFIG
from e2e.cluster.run_program import ClusterError
from e2e.cluster.topology import Topology

NODE_VERBS = {
    "kill-node": ("cut a node's power", LocalCluster.kill_node),
    "restore-node": ("switch a node on again", LocalCluster.restore_node),
    "freeze-node": ("stop every process of a node", LocalCluster.freeze_node),
    "thaw-node": ("let a frozen node go on", LocalCluster.thaw_node),
    "partition-node": ("drop all of a node's packets", LocalCluster.partition_node),
    "heal-node": ("connect a cut-off node again", LocalCluster.heal_node),
}


def main() -> int:
    """Run one verb and return the exit code."""
    arguments, rest = _parser().parse_known_args()
    if rest and arguments.verb not in ("kubectl", "helm"):
        _parser().error(f"unknown arguments: {' '.join(rest)}")
    try:
        return _run(arguments, rest)
    except (ClusterError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(arguments: argparse.Namespace, rest: list[str]) -> int:
    cluster = LocalCluster()
    match arguments.verb:
        case "up":
            LocalCluster(_topology(arguments)).up()
        case "down":
            cluster.down()
        case "status":
            return _print_status(cluster)
        case "images":
            cluster.load_images()
        case "logs":
            cluster.gather_logs(arguments.folder)
        case "kubeconfig":
            print(cluster.kubeconfig())
        case "kubectl" | "helm":
            _exec(binaries_dir() / arguments.verb, rest)
        case verb:
            _, operation = NODE_VERBS[verb]
            operation(cluster, arguments.node)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser("up", help="bring the cluster up, or repair what is missing")
    up.add_argument("--slices", type=int, help="slices of worker nodes (2)")
    up.add_argument("--hosts", type=int, help="worker nodes a slice (2)")
    up.add_argument("--tpus", type=int, dest="tpus_per_host", help="pretended google.com/tpu on each worker (0)")
    up.add_argument("--tpu-accelerator", help="value of the workers' gke-tpu-accelerator label")
    up.add_argument("--tpu-topology", help="value of the workers' gke-tpu-topology label")
    up.add_argument(
        "--gang-scheduling", action="store_true", default=None, help="enable the alpha feature gates of PodGroups (off)"
    )
    verbs.add_parser("down", help="stop everything and leave nothing behind")
    verbs.add_parser("status", help="show what each node is doing")
    verbs.add_parser("images", help="build the project's images and load them into the nodes")
    verbs.add_parser("logs", help="gather logs, events and objects").add_argument("folder", type=Path)
    verbs.add_parser("kubeconfig", help="print the administrator's kubeconfig")
    verbs.add_parser("kubectl", help="run kubectl in this cluster", add_help=False)
    verbs.add_parser("helm", help="run helm in this cluster", add_help=False)
    for verb, (text, _) in NODE_VERBS.items():
        verbs.add_parser(verb, help=text).add_argument("node")
    return parser


def _topology(arguments: argparse.Namespace) -> Topology | None:
    """Return the topology of the options; None if no option was given, so that any topology is accepted."""
    fields = ("slices", "hosts", "tpus_per_host", "tpu_accelerator", "tpu_topology", "gang_scheduling")
    given = {field: value for field in fields if (value := getattr(arguments, field)) is not None}
    return Topology(**given) if given else None


def _print_status(cluster: LocalCluster) -> int:
    """Print a table of the nodes. Return 0 if all are on, else 1."""
    states = cluster.status()
    table = Table("node", "state", box=None)
    for name, state in states:
        table.add_row(name, state)
    Console().print(table)
    return 0 if all(state == "on" for _, state in states) else 1


def _exec(program: Path, program_arguments: list[str]) -> None:
    """Replace this process with kubectl or helm, which then own the pipes, the terminal and the exit code."""
    os.execve(program, [str(program), *program_arguments], {**os.environ, "KUBECONFIG": str(KUBECONFIG)})  # noqa: S606


if __name__ == "__main__":
    sys.exit(main())
