"""Check that the webhook verified a job's permission to use its ServiceAccount.

Only the webhook receives the creator of a job, so it verifies the permission. The operator does not store the result:
any pod that can reach the webhook's port can request a review for a forged user.

The evidence is the webhook configuration in the API server. It must be older than the job, and its `failurePolicy` must
reject jobs while the webhook is unavailable.
"""

import asyncio
from datetime import timedelta

from trainingjob_api.problem import Problem
from trainingjob_api.spec.job import GROUP, PLURAL
from trainingjob_operator.core.manifests import Manifest, get_text, get_value, iter_items
from trainingjob_operator.core.times import parse_time
from trainingjob_operator.shell.api import Api
from trainingjob_operator.shell.interfaces import MissingKindError
from trainingjob_operator.shell.kinds import WEBHOOK_CONFIGURATION
from trainingjob_operator.shell.review_evaluation import SERVICE_ACCOUNT_PATH

CACHE_SECONDS = 10.0
"""Cache lifetime of the webhook configuration."""
WEBHOOK_ROLLOUT = timedelta(seconds=10)
"""Time until all API servers call a newly configured webhook."""


class ServiceAccountCheck:
    """Checks whether the webhook reviewed a job with a ServiceAccount."""

    def __init__(self, api: Api, configuration: str, *, is_enabled: bool, allows_unchecked: bool) -> None:
        """Check against a webhook configuration. `is_enabled`: the operator runs the webhook."""
        self._api = api
        self._name = configuration
        self._is_enabled = is_enabled
        self._allows_unchecked = allows_unchecked
        self._read_at = -CACHE_SECONDS
        self._cached_configuration: Manifest | None = None

    async def find_problem(self, job: Manifest) -> Problem | None:  # None: no ServiceAccount, or a verified one
        """Return why a job must not use its ServiceAccount.

        Raises:
            ClusterUnavailableError: the webhook configuration is unreadable now.
        """
        name = get_text(job, "spec", "runtime", "serviceAccountName")
        if not name or self._allows_unchecked or _has_formed_world(job):
            return None
        reason = await self._unreviewed_reason(job)
        if not reason:
            return None
        advice = (
            "Remove the field, so that the pods run as `default`. Or create the job again once the webhook runs. Or "
            "ask the administrator to set the chart's `webhook.allowUncheckedServiceAccounts`."
        )
        message = f"no webhook has verified that the creator may use ServiceAccount '{name}': {reason}. {advice}"
        return Problem(SERVICE_ACCOUNT_PATH, name, message)

    async def _unreviewed_reason(self, job: Manifest) -> str:
        """Return why the webhook may not have reviewed the job. Empty: the webhook reviewed it."""
        if not self._is_enabled:
            return "the operator runs without its webhook"
        configuration = await self._read()
        webhooks = [webhook for webhook in iter_items(configuration, "webhooks") if _reviews_new_jobs(webhook)]
        if not webhooks:
            return "the webhook is not configured"
        if not any(get_text(webhook, "failurePolicy") in ("", "Fail") for webhook in webhooks):
            return "the webhook's failurePolicy admits jobs while the operator is down"
        configured_at = parse_time(get_text(configuration, "metadata", "creationTimestamp"))
        created_at = parse_time(get_text(job, "metadata", "creationTimestamp"))
        if configured_at is None or created_at is None or created_at < configured_at + WEBHOOK_ROLLOUT:
            return "the job is older than the webhook's configuration"
        return ""

    async def _read(self) -> Manifest | None:
        now = asyncio.get_running_loop().time()
        if now - self._read_at >= CACHE_SECONDS:
            try:
                self._cached_configuration = await self._api.get(WEBHOOK_CONFIGURATION, "", self._name)
            except MissingKindError:
                self._cached_configuration = None
            self._read_at = now
        return self._cached_configuration


def _has_formed_world(job: Manifest) -> bool:
    """Return whether the job formed a world. Its pods then already ran with this account.

    Only the operator writes the status, so the status is evidence.
    """
    return bool(get_value(job, "status", "attempts"))


def _reviews_new_jobs(webhook: Manifest) -> bool:
    """Return whether a webhook reviews every new TrainingJob."""
    return any(
        GROUP in (rule.get("apiGroups") or ())
        and PLURAL in (rule.get("resources") or ())
        and "CREATE" in (rule.get("operations") or ())
        for rule in iter_items(webhook, "rules")
    )
