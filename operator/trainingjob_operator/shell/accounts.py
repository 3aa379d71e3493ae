"""Whether somebody has checked that a job's creator may use the ServiceAccount that the job names.

The webhook asks for that right, since it alone is told who creates a job. Its word is not kept anywhere: whoever can
reach its port can make it say yes about a made-up user. What proves that a job came past it is what the API server has
written: the webhook's configuration, which must refuse jobs while the webhook is away, and be older than the job.
"""

import asyncio
from datetime import timedelta

from trainingjob_api.job import GROUP, PLURAL
from trainingjob_api.problem import Problem
from trainingjob_operator.core.manifests import Manifest, dig, items, text
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.examining import SERVICE_ACCOUNT_PATH
from trainingjob_operator.shell.kinds import WEBHOOK_CONFIGURATION
from trainingjob_operator.shell.ports import MissingKindError

KNOWN_SECONDS = 10.0
"""How long what was read of the configuration is good."""
NOTICED = timedelta(seconds=10)
"""How long API servers may take to ask a webhook that was just configured."""


class Accounts:
    """Looks whether a job that names a ServiceAccount came past the webhook."""

    def __init__(self, api: Api, configuration: str, *, is_enabled: bool, allows_unchecked: bool) -> None:
        """Read the webhook's configuration of a name; without the webhook, or where all are allowed, read nothing."""
        self._api = api
        self._name = configuration
        self._is_enabled = is_enabled
        self._allows_unchecked = allows_unchecked
        self._read_at = -KNOWN_SECONDS
        self._known: Manifest | None = None

    async def find_problem(self, job: Manifest) -> Problem | None:  # None: it names none, or that was checked
        """Return why a job must not use the ServiceAccount that it names.

        Raises:
            ClusterUnavailableError: nobody can tell now.
        """
        name = text(job, "spec", "runtime", "serviceAccountName")
        if not name or self._allows_unchecked or _has_run(job):
            return None
        why = await self._find_gap(job)
        if not why:
            return None
        advice = (
            "Leave the field out (the pods then run as `default`), create the job again once the webhook is in place, "
            "or ask the administrator to set the chart's `webhook.allowUncheckedServiceAccounts`."
        )
        message = f"no webhook has verified that the creator may use ServiceAccount '{name}': {why}. {advice}"
        return Problem(SERVICE_ACCOUNT_PATH, name, message)

    async def _find_gap(self, job: Manifest) -> str:
        """Return how the job may have come in unchecked; empty: it did not."""
        if not self._is_enabled:
            return "the operator runs without its webhook"
        configuration = await self._read()
        webhooks = [webhook for webhook in items(configuration, "webhooks") if _covers(webhook)]
        if not webhooks:
            return "the webhook is not configured"
        if not any(text(webhook, "failurePolicy") in ("", "Fail") for webhook in webhooks):
            return "the webhook's failurePolicy lets jobs in while the operator is away"
        since = parse_time(text(configuration, "metadata", "creationTimestamp"))
        created = parse_time(text(job, "metadata", "creationTimestamp"))
        if since is None or created is None or created < since + NOTICED:
            return "the job is older than the webhook's configuration"
        return ""

    async def _read(self) -> Manifest | None:
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= KNOWN_SECONDS:
            try:
                self._known = await self._api.get(WEBHOOK_CONFIGURATION, "", self._name)
            except MissingKindError:
                self._known = None
            self._read_at = now
        return self._known


def _has_run(job: Manifest) -> bool:
    """Return whether a world was formed: then its pods had the account, and only the operator writes that down."""
    return bool(dig(job, "status", "attempts"))


def _covers(webhook: Manifest) -> bool:
    """Return whether a webhook is asked about every new TrainingJob."""
    return any(
        GROUP in (rule.get("apiGroups") or ())
        and PLURAL in (rule.get("resources") or ())
        and "CREATE" in (rule.get("operations") or ())
        for rule in items(webhook, "rules")
    )
