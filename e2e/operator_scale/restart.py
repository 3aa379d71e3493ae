"""The operator is killed and started again while thousands of hosts train: no world may end.

The next process has another name, as a pod that replaces a lost one: it waits until the Lease has expired.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from e2e.benchmarks.figures import Figure
from e2e.benchmarks.process_usage import cpu_seconds
from e2e.cluster.progress import print_progress
from e2e.cluster.run_program import ClusterError
from e2e.operator_scale.agent_load import Exchange, Record
from e2e.operator_scale.api_server import Server, until
from e2e.operator_scale.controllers import Operator
from trainingjob_operator.core.manifests import Manifest

ANSWER_SECONDS = 300.0
DELIVERY_SECONDS = 0.5
"""Time in which the kernel delivers answers of the killed process. The next one needs longer to start."""
SETTLE_SECONDS, STEADY_SECONDS = 5.0, 20.0
GOAL_LEADER_SECONDS, GOAL_ANSWER_SECONDS, GOAL_RESTART_MS = 10.0, 30.0, 2.0


@dataclass(frozen=True)
class Answers:
    """The number of answers in a time, their median hold time, and the delay of one in a hundred after it."""

    number: int
    hold: float
    delay: float


def summarize_answers(answers: Sequence[Exchange], since: float) -> Answers:
    """Return the summary of all answers since a time. Nearly all are held until their time ends."""
    held = sorted(answer.seconds for answer in answers if answer.at >= since)
    hold = held[len(held) // 2]
    return Answers(len(held), hold, max(held[int(len(held) * 0.99)] - hold, 0.0))


def first_answers(answers: Sequence[Exchange], since: float) -> dict[int, float]:
    """Return the time of each host's first answer since a time."""
    return {answer.host: answer.at for answer in reversed(answers) if answer.at >= since}


def last_answers(answers: Sequence[Exchange], until_time: float) -> dict[int, float]:
    """Return the time of each host's last answer before a time."""
    return {answer.host: answer.at for answer in answers if answer.at < until_time}


def count_new_errors(before: Mapping[str, int], after: Mapping[str, int]) -> tuple[int, int]:
    """Return how many reports an operator refused, and how many found none, between two states of a record."""
    new = Counter(after) - Counter(before)
    refused = sum(number for reason, number in new.items() if re.match(r"ExchangeError: \d{3} ", reason))
    return refused, new.total() - refused


async def measure_restart(
    server: Server, process: asyncio.subprocess.Process, record: Record, job_path: str, goal_seconds: float
) -> list[Figure]:
    """Kill the operator, start it again, and return the figures. The hosts continue to report meanwhile.

    Raises:
        ClusterError: the restart ended a world.
    """
    operator, loop = Operator(), asyncio.get_running_loop()
    before, errors, num_hosts = await _read_status(server, job_path), dict(record.errors), len(record.train_at)
    print_progress(f"killing the operator of {num_hosts} hosts, and starting it again")
    killed, num_answers = loop.time(), len(record.answers)
    process.kill()
    await process.wait()

    def find_first() -> dict[int, float]:
        return first_answers(record.answers[num_answers:], killed + DELIVERY_SECONDS)

    async with operator.run(server) as second:
        ready, cpu = loop.time() - killed, cpu_seconds(second.pid)
        await until(lambda: len(find_first()) == num_hosts, "all hosts to have an answer", ANSWER_SECONDS, second)
        first, cpu = find_first(), cpu_seconds(second.pid) - cpu
        last = last_answers(record.answers, killed + DELIVERY_SECONDS)
        refused, failed = count_new_errors(errors, record.errors)
        await asyncio.sleep(SETTLE_SECONDS)
        steady = loop.time()
        await asyncio.sleep(STEADY_SECONDS)
        answers = summarize_answers(record.answers, steady)
        after = await _read_status(server, job_path)
    new_attempts = len(after["attempts"]) - len(before["attempts"])
    if new_attempts or after["world"]["generation"] != before["world"]["generation"]:
        raise ClusterError(f"the restart of the operator ended a world: {after['attempts']}")
    moments = sorted(first.values())
    silence = max(first[host] - last[host] for host in first)
    return [
        Figure("killed operator: to the readiness of the next", ready, "s", GOAL_LEADER_SECONDS),
        Figure("killed operator: to the first answer of the next", moments[0] - killed, "s", GOAL_LEADER_SECONDS),
        Figure("killed operator: to an answer for all hosts", moments[-1] - killed, "s", GOAL_ANSWER_SECONDS),
        Figure("killed operator: longest time of a host without an answer", silence, "s", GOAL_ANSWER_SECONDS),
        Figure("killed operator: reports that the next one refused", refused, "reports", num_hosts),
        Figure("killed operator: reports without a connection", failed, "reports", num_hosts),
        Figure("killed operator: CPU per host until all have an answer", cpu / num_hosts * 1000, "ms", GOAL_RESTART_MS),
        Figure("killed operator: attempts of the job afterwards", len(after["attempts"]), "attempts", 1),
        Figure("killed operator: delay after the hold afterwards, p99", answers.delay, "s", goal_seconds),
    ]


async def _read_status(server: Server, job_path: str) -> Manifest:
    status: Manifest = (await server.request("GET", job_path))["status"]
    return status
