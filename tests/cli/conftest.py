"""The API server that the commands about a job of a cluster call."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from aiohttp.test_utils import TestServer

from tests.support.builders import NAMESPACE
from tests.support.job_api import FakeApi
from trainingjob_operator.cli import drill, inspection, pod_logs, status, wait


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApi]:
    for module in (inspection, pod_logs, status, wait):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(drill, "DRILL_POLL_SECONDS", 0.01)
    fake = FakeApi()
    async with TestServer(fake.app()) as server:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
            "clusters": [{"name": "c", "cluster": {"server": str(server.make_url("/")).rstrip("/")}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        yield fake
