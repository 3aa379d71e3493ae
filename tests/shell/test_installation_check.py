"""`helm test`: an installation works when the webhook rejects an invalid job and accepts a valid one."""

from typing import Any

import pytest
from aiohttp import web

from tests.shell.conftest import failure
from trainingjob_operator.core.validation.validate import validate_manifest
from trainingjob_operator.shell import installation_check
from trainingjob_operator.shell import main as main_module
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.installation_check import (
    INVALID_SPEC,
    VALID_SPEC,
    WEBHOOK,
    InstallationError,
    check_installation,
)
from trainingjob_operator.shell.kinds import TRAINING_JOB


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installation_check, "TIMEOUT_SECONDS", 5.0)
    monkeypatch.setattr(installation_check, "RETRY_SECONDS", 0.01)


def review_with(api_server: Any, *refusals: str) -> list[str]:
    """Answer each creation with the next refusal; empty: accept it, like all that follow. Return the dry runs."""
    left, dry_runs = [*refusals], list[str]()

    def answer(request: web.Request) -> web.Response | None:
        dry_runs.append(request.query.get("dryRun", "none"))
        message = left.pop(0) if left else ""
        return failure(422, "Invalid", message) if message else None

    api_server.fault = answer
    return dry_runs


DENIED = f'admission webhook "{WEBHOOK}" denied the request: 3 problems'


def test_one_job_is_valid_and_the_other_only_by_the_definition() -> None:
    def problems_of(spec: dict[str, Any]) -> list[str]:
        job = {"metadata": {"name": "installation-test", "namespace": "ml"}, "spec": spec}
        return [problem.path for problem in validate_manifest(job).problems]

    assert problems_of(VALID_SPEC) == []
    assert problems_of(INVALID_SPEC) == ["spec.parallelism.ici"]


async def test_the_webhook_is_awaited_and_only_dry_runs_are_requested(api: Api, api_server: Any) -> None:
    dry_runs = review_with(api_server, f'failed calling webhook "{WEBHOOK}"', DENIED, "", DENIED)

    await check_installation(api, "research")

    assert dry_runs == ["All"] * 3
    assert api_server.find(TRAINING_JOB, "research", "installation-test")["metadata"]["namespace"] == "research"


BROKEN = {
    "no webhook": ([], "the webhook must reject an invalid job: it was accepted"),
    "the definition is missing": (["no such kind"] * 9999, "the webhook must reject an invalid job: no such kind"),
    "a webhook that rejects everything": ([DENIED] * 9999, f"a valid job must be accepted: {DENIED}"),
}


@pytest.mark.parametrize(("refusals", "words"), BROKEN.values(), ids=BROKEN.keys())
async def test_an_installation_that_does_not_work_is_described(
    api: Api, api_server: Any, monkeypatch: pytest.MonkeyPatch, refusals: list[str], words: str
) -> None:
    monkeypatch.setattr(installation_check, "TIMEOUT_SECONDS", 0.3)
    review_with(api_server, *refusals)
    if not refusals:
        api_server.fault = lambda _: web.json_response({}, status=201)

    with pytest.raises(InstallationError, match="must") as described:
        await check_installation(api, "research")

    assert str(described.value) == words


def test_a_failure_ends_the_program_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(namespace: str) -> None:
        raise InstallationError(f"no webhook in {namespace}")

    monkeypatch.setattr(main_module, "check", fail)
    monkeypatch.setattr(main_module, "configure_logging", lambda level, form: None)

    with pytest.raises(SystemExit) as ended:
        main_module.main(["test", "research"])

    assert ended.value.code == 1
    assert [record.fields["error"] for record in caplog.records] == ["no webhook in research"]
