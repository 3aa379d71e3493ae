"""The operator with thousands of jobs and hosts, and Kubeflow Trainer's controller next to it on one API server.

No controllers of Kubernetes run: the figures are those of the two operators and of the API server. Jobs stay without
pods, so that all of them are idle. Then one job has thousands of hosts, whose agents speak the real protocol. At the
end their operator is killed and started again.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from e2e.benchmarks.process_usage import MIB, cpu_seconds, memory_bytes, raise_file_limit
from e2e.cluster.progress import print_progress
from e2e.cluster.run_program import ClusterError
from e2e.operator_scale.api_server import Server, running_api_server
from e2e.operator_scale.controllers import Controller, KubeflowTrainer, Operator, define_kinds, idle_memory
from e2e.operator_scale.hosts import measure_hosts
from e2e.operator_scale.jobs import Campaign, create_jobs, settle
from e2e.operator_scale.requests_alone import make_example, measure_requests

JOBS_PER_SECOND = 40
PACED_JOBS = 400
GOAL_P99_SECONDS, GOAL_WRITES, GOAL_READY_SECONDS, GOAL_RENDEZVOUS_SECONDS = 1.0, 3.0, 30.0, 0.1
GOAL_BASE_MIB, GOAL_MIB_PER_1000_JOBS, GOAL_MIB_PER_HOST = 70.0, 8.0, 0.1
UNLIMITED = 100_000
"""Requests per second of a client that nothing limits. This operator has no such limit."""


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table and write it to build/bench/operator.json. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.operator_scale", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000, help="jobs that are created at once")
    parser.add_argument("--idle-jobs", type=int, default=5000, help="jobs in the end")
    parser.add_argument("--slices", type=int, default=4, help="slices of the large job")
    parser.add_argument("--topology", default="16x16x16", help="topology of a slice of v5p: 4 chips per host")
    parser.add_argument("--only-hosts", action="store_true", help="measure the large job alone")
    options = parser.parse_args(arguments)
    raise_file_limit()
    try:
        figures = asyncio.run(measure(options))
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    publish("operator", figures, Console())
    return 0


async def measure(options: argparse.Namespace) -> list[Figure]:
    """Return all figures, or those of the large job alone."""
    figures = [] if options.only_hosts else await _measure_all_jobs(options.jobs, options.idle_jobs)
    async with running_api_server() as server:  # without the jobs, each of which is reconciled every five minutes
        await define_kinds(server)
        goals = GOAL_MIB_PER_HOST, GOAL_RENDEZVOUS_SECONDS
        return figures + await measure_hosts(server, options.slices, options.topology, *goals)


async def _measure_all_jobs(num_jobs: int, num_idle: int) -> list[Figure]:
    """Return the figures of jobs without hosts, and those of the peer."""
    async with running_api_server() as server:
        print_progress("installing the definitions of both operators")
        await define_kinds(server)
        default = await _create(server, KubeflowTrainer("kubeflow", 50, 100), num_jobs)
        unlimited = await _create(server, KubeflowTrainer("kubeflow-unlimited", UNLIMITED, UNLIMITED), num_jobs)
        figures = _describe_peer(default, unlimited)
        figures += await _measure_jobs(server, num_jobs, num_idle, default, unlimited)
    async with running_api_server() as server:
        await define_kinds(server)
        return figures + await _measure_bound(server, num_jobs, unlimited)


async def _measure_bound(server: Server, num_jobs: int, unlimited: Campaign) -> list[Figure]:
    """Return the time that the API server alone needs for the jobs of a burst."""
    example = await make_example(server)
    every = await measure_requests(server, example, num_jobs, only_creations=False)
    creations = await measure_requests(server, example, num_jobs, only_creations=True)
    return [
        Figure(f"the requests of {num_jobs} jobs without an operator", every, "s", unlimited.seconds),
        Figure(f"only {num_jobs} TrainingJobs and JobSets, without an operator", creations, "s", unlimited.seconds),
    ]


async def _measure_jobs(
    server: Server, num_jobs: int, num_idle: int, default: Campaign, unlimited: Campaign
) -> list[Figure]:
    """Return the figures of this operator with idle jobs, and of its restart."""
    operator = Operator()
    async with operator.run(server) as process:
        empty, cpu = memory_bytes(process.pid) / MIB, cpu_seconds(process.pid)
        print_progress(f"creating {num_jobs} jobs of {operator.name}")
        burst = await create_jobs(server, operator, "burst", num_jobs)
        cpu_per_job = (cpu_seconds(process.pid) - cpu) / num_jobs
        some = memory_bytes(process.pid) / MIB
        print_progress(f"creating {PACED_JOBS} jobs, {JOBS_PER_SECOND} a second")
        paced = await create_jobs(server, operator, "paced", PACED_JOBS, JOBS_PER_SECOND)
        rest = num_idle - num_jobs - PACED_JOBS
        if rest > 0:
            print_progress(f"creating {rest} more jobs")
            await create_jobs(server, operator, "idle", rest)
        all_jobs = await idle_memory(process)
    print_progress(f"restarting the operator with {num_idle} jobs")
    loop = asyncio.get_running_loop()
    start = loop.time()
    async with operator.run(server) as process:
        ready = loop.time() - start
        await settle(server)
        restarted = await idle_memory(process)
    per_1000 = (all_jobs - empty) / num_idle * 1000
    return [
        Figure(f"{num_jobs} jobs to JobSets, against the peer's defaults", burst.seconds, "s", default.seconds),
        Figure(f"{num_jobs} jobs to JobSets, against the peer without limits", burst.seconds, "s", unlimited.seconds),
        Figure("apply to JobSet at once, median", burst.quantile(0.5), "s", unlimited.quantile(0.5)),
        Figure("CPU time per job, with its check", cpu_per_job * 1000, "ms", 1000 / JOBS_PER_SECOND),
        Figure(f"apply to JobSet at {JOBS_PER_SECOND} jobs/s, median", paced.quantile(0.5), "s", GOAL_P99_SECONDS),
        Figure(f"apply to JobSet at {JOBS_PER_SECOND} jobs/s, p99", paced.quantile(0.99), "s", GOAL_P99_SECONDS),
        Figure("API writes per job at once", burst.writes_per_job, "writes", GOAL_WRITES),
        Figure(f"API writes per job at {JOBS_PER_SECOND} jobs/s", paced.writes_per_job, "writes", GOAL_WRITES),
        Figure("memory without jobs", empty, "MiB", GOAL_BASE_MIB),
        Figure(
            f"memory with {num_jobs} jobs and the process that checks jobs",
            some,
            "MiB",
            GOAL_BASE_MIB + GOAL_MIB_PER_1000_JOBS * num_jobs / 1000,
        ),
        Figure(f"memory per 1,000 of {num_idle} jobs", per_1000, "MiB", GOAL_MIB_PER_1000_JOBS),
        Figure(
            f"memory per 1,000 of {num_idle} jobs, after a restart",
            (restarted - empty) / num_idle * 1000,
            "MiB",
            GOAL_MIB_PER_1000_JOBS,
        ),
        Figure(f"restart with {num_idle} jobs to ready", ready, "s", GOAL_READY_SECONDS),
    ]


async def _create(server: Server, controller: Controller, num_jobs: int) -> Campaign:
    async with controller.run(server):
        print_progress(f"creating {num_jobs} jobs of {controller.name}")
        return await create_jobs(server, controller, controller.name, num_jobs)


def _describe_peer(default: Campaign, unlimited: Campaign) -> list[Figure]:
    return [
        Figure("the peer with its defaults: jobs to JobSets", default.seconds, "s", default.seconds),
        Figure("the peer without limits: jobs to JobSets", unlimited.seconds, "s", default.seconds),
        Figure("the peer without limits: apply to JobSet, p99", unlimited.quantile(0.99), "s", GOAL_P99_SECONDS),
        Figure("the peer: API writes per job", unlimited.writes_per_job, "writes", GOAL_WRITES),
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
