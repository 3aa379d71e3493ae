"""The API server's audit log of requests from one namespace, the operator's, on the local cluster.

Bodies are recorded only for writes, and never if they contain a secret or a token.
"""

import json
from datetime import datetime
from typing import Any

from e2e.cluster.paths import LOGS, STATE

NAMESPACE = "trainingjob-system"
"""Namespace whose pods' requests are recorded."""
LOG = LOGS / "audit.log"
POLICY = STATE / "audit-policy.json"
WITHOUT_BODY = (
    {"group": "", "resources": ["secrets"]},
    {"group": "authentication.k8s.io", "resources": ["tokenreviews"]},
)
WRITES = ("create", "update", "patch", "delete", "deletecollection")

type Event = dict[str, Any]


def policy() -> dict[str, Any]:
    """Return the API server's audit policy; the first matching rule applies."""
    group = {"userGroups": [f"system:serviceaccounts:{NAMESPACE}"]}
    return {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "omitManagedFields": True,
        "rules": [
            {**group, "level": "Metadata", "resources": list(WITHOUT_BODY)},
            {**group, "level": "Request", "verbs": list(WRITES)},
            {**group, "level": "Metadata"},
            {"level": "None"},
        ],
    }


def flags() -> list[str]:
    """Write the policy; return the API server's flags that apply it."""
    POLICY.write_text(json.dumps(policy()))  # JSON is YAML
    LOG.parent.mkdir(parents=True, exist_ok=True)
    return [f"--audit-policy-file={POLICY}", f"--audit-log-path={LOG}", "--audit-log-mode=blocking"]


def read(since: datetime) -> list[Event]:
    """Return the requests that were answered since a time, oldest first."""
    if not LOG.exists():
        return []
    with LOG.open() as file:
        events = [json.loads(line) for line in file if line.endswith("\n")]  # the last line may be incomplete
    return [event for event in events if datetime.fromisoformat(event["stageTimestamp"]) >= since]
