"""Arbitrary reports of a compromised host: each is rejected, or the resulting status is writable."""

import json
import random
from collections.abc import AsyncIterator
from typing import Any

import jsonschema
import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.support.builders import KEY, NAME, NAMESPACE, UID
from tests.support.protocol_schema import Node, Path, Schema, put
from tests.support.simulation import Simulation
from trainingjob_api.protocol import MAX_REPORTED, REPORT_PATH, HostReport
from trainingjob_api.schema import status_schema
from trainingjob_operator.core.decide.world_formation import MAX_GENERATION_LEAD
from trainingjob_operator.shell import rendezvous
from trainingjob_operator.shell.hub import Hub
from trainingjob_operator.shell.interfaces import Caller

REPORT = Schema(HostReport)
SAMPLE = REPORT.sample() | {"jobUid": UID, "podUid": "pod-0-0"}
LEAVES = {".".join(map(str, path)): (path, node) for path, node in REPORT.walk() if path}
IDENTITY = {"jobUid", "podUid"}
STATUS = jsonschema.Draft202012Validator(status_schema())


class Tokens:
    """Authenticates every caller as the same pod."""

    async def authenticate(self, token: str, peer: str) -> Caller:
        return Caller("pod-0-0", NAMESPACE, NAME, UID)


@pytest.fixture
async def service(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[TestClient[Any, Any], Hub]]:
    monkeypatch.setattr(rendezvous, "LONG_POLL_SECONDS", 0.0)
    hub = Hub(lambda: 0.0, lambda namespace, name: None)
    async with TestClient(TestServer(rendezvous.rendezvous_app(hub, Tokens()))) as client:
        yield client, hub


async def post(client: TestClient[Any, Any], body: bytes) -> tuple[int, str]:
    async with client.post(REPORT_PATH, data=body, headers={"Authorization": "Bearer x"}) as response:
        return response.status, await response.text()


def alone(name: str | int) -> dict[str, Any]:
    """Return the sample with a field under one of its two names, because the new name is read if both are there."""
    other = {former: new for new, former in HostReport.former_names().items()}.get(str(name))
    return {key: value for key, value in SAMPLE.items() if key != other}


def beyond(node: Node) -> list[object]:
    """Return values that a field must not have."""
    match node.get("type"):
        case "integer":
            return [
                node["minimum"] - 1,
                node.get("maximum", node.get("exclusiveMaximum", 0)) + 1,
                10**30,
                -(10**30),
                1.5,
                "NaN",
                [],
                {},
            ]
        case "number":
            return [node["maximum"] * 10, node["minimum"] - 1e40, 10**400, "x", [], {}]
        case "string" if "enum" in node:
            return ["unknown", "", 1, []]
        case "string":
            return ["x" * 20_000, 1, [], {}] if node["maxLength"] != 1024 else [1, [], {}]
        case "array":
            return [[None] * (node["maxItems"] + 1), "x", {}]
        case "object" if "maxProperties" in node:
            return [{str(number): 1 for number in range(node["maxProperties"] + 1)}, "x"]
        case "boolean":
            return [2, "perhaps", []]
    return ["x", 1, True]


@pytest.mark.parametrize(("path", "node"), LEAVES.values(), ids=LEAVES.keys())
async def test_report_out_of_bounds_is_rejected_with_the_name_of_its_field(
    path: Path, node: Node, service: tuple[TestClient[Any, Any], Hub]
) -> None:
    client, hub = service
    for value in beyond(node):
        status, text = await post(client, json.dumps(put(alone(path[0]), path, value)).encode())

        assert status in (400, 413), (value, text)
        assert str(path[0]) in text or status == 413
        assert hub.heartbeat_state(KEY).latest_reports == {}


BODIES = {
    "nothing": b"",
    "no JSON": b"\x00\xff",
    "a list": b"[]",
    "levels without end": b"[" * 60_000,
    "objects without end": b'{"progress":' * 5_000,
    "a number of 5000 digits": json.dumps(SAMPLE).replace('"generation": 1', f'"generation": {"9" * 5000}').encode(),
    "1e999": json.dumps(SAMPLE).replace('"loss": 1', '"loss": 1e999').encode(),
    "-1e999": json.dumps(SAMPLE).replace('"loss": 1', '"loss": -1e999').encode(),
    "NaN": json.dumps(SAMPLE).replace('"loss": 1', '"loss": NaN').encode(),
    "Infinity": json.dumps(SAMPLE).replace('"stepSeconds": 1', '"stepSeconds": Infinity').encode(),
    "half of a surrogate pair": json.dumps(SAMPLE)
    .replace('"initializedFrom": "x"', r'"initializedFrom": "\ud800"')
    .encode(),
    "broken UTF-8": json.dumps(SAMPLE).encode().replace(b'"initializedFrom": "x"', b'"initializedFrom": "\xc3\x28"'),
    "too much": b" " * 70_000,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
async def test_no_body_breaks_the_rendezvous(body: bytes, service: tuple[TestClient[Any, Any], Hub]) -> None:
    client, hub = service
    assert body not in (b"", json.dumps(SAMPLE).encode()) or not body

    status, _ = await post(client, body)

    assert status in (400, 413)
    assert hub.heartbeat_state(KEY).latest_reports == {}


def within(node: Node) -> list[object]:
    """Return the farthest values that a field may have."""
    match node.get("type"):
        case "integer" | "number":
            highest = node["maximum"] if "maximum" in node else node["exclusiveMaximum"] - 1
            return [node["minimum"], min(highest, MAX_REPORTED) if node["type"] == "integer" else highest]
        case "string" if "enum" in node:
            return list(node["enum"])
        case "string":
            return ["", "\x00\x1b[2J\u202e" + "\U0001d54f" * (node["maxLength"] - 6)]
        case "boolean":
            return [False, True]
    return []


def fill(node: Node, item: object) -> list[object]:
    """Return lists and maps that are as long as they may be."""
    match node:
        case {"type": "array", "maxItems": most}:
            return [[], [item] * min(most, 200)]
        case {"type": "object", "maxProperties": most} if "enum" not in REPORT.resolve(node["propertyNames"]):
            return [{}, {str(number): next(iter(item.values())) for number in range(most)}]  # type: ignore[attr-defined]
    return []


def at(document: Any, path: Path) -> Any:
    for key in path:
        document = document[key]
    return document


async def form() -> tuple[Simulation, Caller, dict[str, Any]]:
    """Return a job that trains, one of its hosts as a caller, and what that host truthfully reports."""
    sim = Simulation(total=60)
    await sim.run_until_step(5)
    sim.check = lambda: None  # type: ignore[method-assign]  # what a host makes up contradicts what it said before
    agent = next(iter(sim.agents.values()))
    report = sim.hub.heartbeat_state(KEY).latest_reports[agent.pod_uid].report
    return sim, Caller(agent.pod_uid, NAMESPACE, NAME, UID), json.loads(report.model_dump_json(by_alias=True))


async def hear(sim: Simulation, caller: Caller, report: dict[str, Any]) -> None:
    """Let a host report, and the operator reconcile and write."""
    sim.hub.receive(caller, HostReport.model_validate_json(json.dumps(report)))
    for _ in range(3):
        sim.time.seconds += 0.5
        await sim.reconciler.reconcile(NAMESPACE, NAME)
    for status in sim.cluster.statuses[sim.num_checked :]:
        assert not list(STATUS.iter_errors(json.loads(json.dumps(status, allow_nan=False)))), "the API server takes it"
    sim.num_checked = len(sim.cluster.statuses)


def truthful(honest: dict[str, Any]) -> dict[str, Any]:
    """Return a report in which every field is set, of the same host in the same world."""
    full = SAMPLE | {key: honest[key] for key in ("jobUid", "podUid", "pod", "slice", "host", "generation", "phase")}
    return full | {"failure": None, "broken": None, "unreaped": False}


@pytest.mark.thorough
@pytest.mark.parametrize("group", range(8))
@pytest.mark.parametrize("failed", [False, True], ids=["trains", "failed"])
async def test_every_report_within_bounds_gives_a_writable_status(group: int, *, failed: bool) -> None:
    sim, caller, honest = await form()
    base = truthful(honest)
    if failed:
        base |= {"phase": "failed", "failure": SAMPLE["failure"], "broken": SAMPLE["broken"]}
    for path, node in [*LEAVES.values()][group::8]:
        head = path[0]
        if head in IDENTITY or (base[head] is None and len(path) > 1):
            continue
        sample = at(SAMPLE, path)
        for value in (*within(node), *fill(node, sample[0] if isinstance(sample, list) else sample)):
            await hear(sim, caller, put(base, path, value))


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(6))
async def test_a_job_ends_well_when_a_host_that_reported_nonsense_comes_to_its_senses(seed: int) -> None:
    sim, caller, honest = await form()
    chance = random.Random(seed)  # noqa: S311  # no secret
    leaves = [(path, node) for path, node in LEAVES.values() if path[0] not in IDENTITY and within(node)]
    for _ in range(12):
        report = truthful(honest) | {"phase": chance.choice(["idle", "training", "saving", "evaluating"])}
        for path, node in chance.sample(leaves, 12):
            if report[path[0]] is not None and path[0] not in (
                "phase",
                "committed",
                "restored",
                "copied",
                "exported",
                "missing_lineage",
            ):
                report = put(report, path, chance.choice(within(node)))
        await hear(sim, caller, report)

    await sim.run(300, until="Succeeded")

    assert sim.status.phase == "Succeeded"


async def test_a_generation_far_ahead_uses_up_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sim, caller, honest = await form()
    before = sim.status.world
    assert before
    await hear(sim, caller, honest | {"generation": 10**12})
    await sim.run(60)

    assert sim.status.world
    assert sim.status.world.generation - before.generation < MAX_GENERATION_LEAD
    await sim.run(300, until="Succeeded")
    assert sim.status.phase == "Succeeded"
