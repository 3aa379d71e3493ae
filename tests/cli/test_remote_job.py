"""The commands about a job of a cluster, against an API server that answers as a real one does."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support.builders import NAME, NAMESPACE, UID, pod_manifest
from tests.support.job_api import ENDED, PLAN, RUNNING, FakeApi, call
from trainingjob_api.status.training_job_status import TrainingJobStatus
from trainingjob_operator.cli import drill, pod_logs


async def test_status_describes_a_job(api: FakeApi) -> None:
    result = await call("status", NAME)

    assert (result.code, result.out) == (0, ["demo  Running", "step 7 of 100 (0 %)"])


async def test_status_watches_until_the_job_is_over(api: FakeApi) -> None:
    api.states = [RUNNING, RUNNING, ENDED]

    result = await call("status", NAME, "--watch")

    assert result.code == 0
    assert "demo  Succeeded" in result.out[0]
    assert len(api.states) == 1


async def test_log_lines_have_their_host_as_prefix(api: FakeApi) -> None:
    result = await call("logs", NAME, "--tail", "5")

    assert result.out == [
        "slice 0 host 0 | one",
        "slice 0 host 0 | two",
        "slice 0 host 1 | one",
        "slice 0 host 1 | two",
    ]
    assert api.queries == [{"tailLines": "5"}] * 2


async def test_logs_of_one_host(api: FakeApi) -> None:
    result = await call("logs", NAME, "--slice", "0", "--host", "1")

    assert result.out == ["slice 0 host 1 | one", "slice 0 host 1 | two"]


async def test_logs_of_a_job_that_tokenizes_name_the_command_for_its_pods(api: FakeApi) -> None:
    api.states = [RUNNING.model_copy(update={"phase": "Preparing"})]
    api.pods = []

    result = await call("logs", NAME)

    assert result.code == 2
    assert f"--namespace {NAMESPACE} --selector trainingjob.dev/job-uid={UID}` prints the logs" in result.err


async def test_host_without_log_is_reported(api: FakeApi) -> None:
    api.logs.pop(api.pods[0]["metadata"]["name"])

    result = await call("logs", NAME, "--host", "0")

    assert result.out == ["slice 0 host 0 | no log: container trainer is waiting to start"]


async def test_logs_are_followed_until_the_job_is_over(api: FakeApi) -> None:
    api.states = [RUNNING, RUNNING, ENDED]
    late = pod_manifest(PLAN, 1, 0)
    api.logs[late["metadata"]["name"]] = ["late"]
    api.pods = [api.pods[0], late]

    result = await call("logs", NAME, "--follow")

    assert set(result.out) == {"slice 0 host 0 | one", "slice 0 host 0 | two", "slice 1 host 0 | late"}
    first, again = [query for query in api.queries if "sinceTime" not in query], api.queries[-1]
    assert first == [{"follow": "true"}] * 2
    assert "sinceTime" in again  # a log that ended while its container runs goes on from there


async def test_followed_log_resumes_at_the_time_of_the_api_server(api: FakeApi) -> None:
    api.states = [RUNNING, RUNNING, ENDED]
    api.pods = api.pods[:1]
    api.date = "Sat, 21 Nov 2026 12:00:00 GMT"

    await call("logs", NAME, "--follow")

    assert [query.get("sinceTime", "")[:15] for query in api.queries[:2]] == ["", "2026-11-21T12:0"]


async def test_followed_log_of_a_container_that_starts_later_is_complete(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 0.05)
    api.states = [RUNNING, RUNNING, RUNNING, ENDED]
    api.pods = api.pods[:1]
    logs = iter([None])  # no log yet
    api.logs = SimpleNamespace(get=lambda _: next(logs, ["one", "two"]))  # type: ignore[assignment]

    result = await call("logs", NAME, "--follow", "--tail", "50")

    assert set(result.out) == {"slice 0 host 0 | one", "slice 0 host 0 | two"}
    assert api.queries[:2] == [{"follow": "true", "tailLines": "50"}] * 2


FAILED = ENDED.model_copy(update={"phase": "Failed"})


@pytest.mark.parametrize(("end", "code"), [(ENDED, 0), (FAILED, 1)], ids=["succeeded", "failed"])
async def test_wait_ends_with_the_job(end: TrainingJobStatus, code: int, api: FakeApi) -> None:
    api.states = [RUNNING, RUNNING, end]

    result = await call("wait", NAME)

    assert result.code == code
    assert [line.partition("  ")[2] for line in result.out] == ["demo  Running", f"demo  {end.phase}"]


async def test_wait_gives_up_in_time(api: FakeApi) -> None:
    result = await call("wait", NAME, "--timeout", "0.05")

    assert result.code == 2
    assert "demo is not over yet" in result.err


ASKED = {"id": "abc", "kind": "hang", "asked": "2026-11-21T12:00:00Z", "slice": 1, "host": 0}
TRAINS_AGAIN = {"recoverySeconds": 2.5, "lostSteps": 3}
DRILLS: dict[str, tuple[list[dict[str, Any]], int, list[str]]] = {
    "the job comes back": (
        [{"state": "injected"}, {"state": "injected"}, {"state": "recovered", **TRAINS_AGAIN}],
        0,
        ["injected", "the job recovered", "drills", "back in 2.5 s, 3 steps lost"],
    ),
    "the world continued": (
        [{"state": "withstood", "message": "why"}],
        0,
        ["the world continued: why", "drills", "why"],
    ),
    "it is refused": ([{"state": "refused", "message": "why not"}], 1, ["refused: why not"]),
}


def drilled(state: dict[str, Any]) -> TrainingJobStatus:
    return TrainingJobStatus.model_validate({"phase": "Running", "drills": [{**ASKED, **state}]})


@pytest.mark.parametrize(("states", "code", "words"), DRILLS.values(), ids=DRILLS.keys())
async def test_a_drill_is_followed_to_its_end(
    states: list[dict[str, Any]],
    code: int,
    words: list[str],
    api: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drill.secrets, "token_hex", lambda _: "abc")
    api.spec = {"elastic": {"faultInjection": "allowed"}}
    api.states = [RUNNING, RUNNING, RUNNING, *map(drilled, states)]

    result = await call("drill", NAME, "hang")

    assert (result.code, len(result.out)) == (code, len(words)), result.err
    assert all(word in line for word, line in zip(words, result.out, strict=True)), result.out


async def test_drill_request_has_the_cluster_s_time(api: FakeApi) -> None:
    """The operator ignores a drill that was requested long ago, and this machine's clock may be wrong."""
    api.spec = {"elastic": {"faultInjection": "allowed"}}
    api.states = [RUNNING, ENDED]
    api.date = "Sat, 21 Nov 2026 12:00:00 GMT"

    await call("drill", NAME, "hang")

    (((request,),),) = (api.patches,)
    value = request["value"]
    requested = json.loads(value if isinstance(value, str) else value["trainingjob.dev/drill"])["asked"]
    assert requested.startswith("2026-11-21T12:00:0")


async def test_drill_of_a_job_that_ends_meanwhile_is_reported(api: FakeApi) -> None:
    api.spec = {"elastic": {"faultInjection": "allowed"}}
    api.states = [RUNNING, RUNNING, RUNNING, ENDED]

    result = await call("drill", NAME, "hang")

    assert result.code == 1
    assert result.err.startswith("Error: the job is Succeeded and made no step after the drill.")


def add(field: str, value: object) -> dict[str, object]:
    return {"op": "add", "path": f"/spec/{field}", "value": value}


FIXED = {"slices": {"accelerator": "cpu", "topology": "2x2", "count": 2}}
EDITS: dict[str, tuple[dict[str, Any], list[str], list[dict[str, object]], str]] = {
    "the most": (
        {},
        ["scale", NAME, "--max", "4"],
        [add("slices/max", 4)],
        "demo: 1 to 2 slices changed to 1 to 4 slices",
    ),
    "elastic from fixed": (
        FIXED,
        ["scale", NAME, "--min", "1"],
        [{"op": "remove", "path": "/spec/slices/count"}, add("slices/min", 1), add("slices/max", 2)],
        "demo: 2 slices changed to 1 to 2 slices",
    ),
    "fixed from elastic": (
        {},
        ["scale", NAME, "--count", "1"],
        [
            add("slices/count", 1),
            {"op": "remove", "path": "/spec/slices/min"},
            {"op": "remove", "path": "/spec/slices/max"},
        ],
        "demo: 1 to 2 slices changed to 1 slice",
    ),
    "suspend": ({}, ["suspend", NAME], [add("suspend", True)], "demo saves and releases its pods"),
    "resume": ({"suspend": True}, ["resume", NAME], [add("suspend", False)], "demo resumes"),
}


@pytest.mark.parametrize(("spec", "args", "operations", "words"), EDITS.values(), ids=EDITS.keys())
async def test_an_edit(
    spec: dict[str, Any], args: list[str], operations: list[dict[str, object]], words: str, api: FakeApi
) -> None:
    api.spec = spec

    result = await call(*args)

    assert (result.code, result.out) == (0, [words])
    assert api.patches == [operations]


NOTHING_TO_DO = {
    "the same bounds": (["scale", NAME, "--min", "1"], "demo already has 1 to 2 slices"),
    "not suspended": (["resume", NAME], "demo is not suspended"),
}


@pytest.mark.parametrize(("args", "words"), NOTHING_TO_DO.values(), ids=NOTHING_TO_DO.keys())
async def test_unchanged_value_is_not_written(args: list[str], words: str, api: FakeApi) -> None:
    result = await call(*args)

    assert (result.code, result.out, api.patches) == (0, [words], [])


@pytest.mark.parametrize("args", [["suspend", NAME], ["resume", NAME], ["scale", NAME, "--max", "3"]])
async def test_a_job_that_is_over_is_not_changed(args: list[str], api: FakeApi) -> None:
    """Without a webhook, the API server would store a change that has no effect."""
    api.states = [ENDED]

    result = await call(*args)

    assert (result.code, api.patches) == (1, [])
    assert result.err.startswith(f"Error: {NAME} is Succeeded: a job that is over cannot be changed.")


REFUSED = {
    "by the webhook": ((422, "spec.slices.max: 3 is too many."), 1, "spec.slices.max: 3 is too many."),
    "for somebody else": ((409, "the object has been modified"), 2, "another client changed the job"),
    "it is gone": ((404, "not found"), 2, 'there is no TrainingJob "demo"'),
}


@pytest.mark.parametrize(("refusal", "code", "words"), REFUSED.values(), ids=REFUSED.keys())
async def test_rejected_edit_shows_the_server_s_message(
    refusal: tuple[int, str], code: int, words: str, api: FakeApi
) -> None:
    api.refusal = refusal

    result = await call("scale", NAME, "--max", "3")

    assert result.code == code
    assert result.err.startswith(f"Error: {words}")


@pytest.mark.parametrize("args", [["scale", NAME], ["scale", NAME, "--count", "2", "--max", "3"]])
async def test_scale_requires_one_change(args: list[str]) -> None:
    assert (await call(*args)).code == 2


UNREACHABLE = {
    "no such job": (["status", "other"], 'there is no TrainingJob "other" in namespace research.'),
    "no operator": (["status", NAME, "-n", "bare"], "this cluster does not serve TrainingJobs: install the operator"),
    "no such host": (["logs", NAME, "--slice", "7"], 'TrainingJob "demo" has no such host now'),
    "no such kubeconfig": (["status", NAME, "--kubeconfig", "/nowhere"], "there is no kubeconfig at /nowhere."),
}


@pytest.mark.parametrize(("args", "want"), UNREACHABLE.values(), ids=UNREACHABLE.keys())
async def test_missing_object_is_reported(args: list[str], want: str, api: FakeApi) -> None:
    result = await call(*args)

    assert result.code == 2, "1 is for a job that failed"
    assert result.err.startswith(f"Error: {want}")


EXPIRED = {
    "wait": ["wait", NAME],
    "watch": ["status", NAME, "--watch"],
    "follow": ["logs", NAME, "-f"],
    "edit": ["suspend", NAME],
}


@pytest.mark.parametrize("args", EXPIRED.values(), ids=EXPIRED.keys())
async def test_credentials_that_expire_are_no_answer_about_the_job(args: list[str], api: FakeApi) -> None:
    api.looks = 1

    result = await call(*args)

    assert result.code == 2, "1 is for a job that failed"
    assert result.err.startswith("Error: the cluster cannot be reached: ")
    assert result.err.endswith("401 Unauthorized (the credentials may have expired)\n")


async def test_a_context_that_is_not_there_is_no_answer(api: FakeApi) -> None:
    result = await call("status", NAME, "--context", "mars")

    assert result.code == 2
    assert result.err.startswith("Error: the cluster cannot be reached: no usable kubeconfig")
