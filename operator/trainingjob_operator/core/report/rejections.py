"""Rejected creations and deletions of children: the API server's message, with a next step if a webhook failed.

The API server calls Kueue's webhook `mjobset.kb.io` for every JobSet. While no pod of that webhook answers, no JobSet
can be created. Existing pods, and so worlds that train, do not depend on it.
"""

import re
from collections.abc import Sequence

from trainingjob_operator.core.observe.pods import ObjectProblem

WEBHOOK_FAILED = "failed calling webhook"
"""Part of the API server's error message if an admission webhook failed; the server itself works."""
_WEBHOOK = re.compile(rf'{WEBHOOK_FAILED} "(?P<webhook>[^"]+)"')
_SERVICE = re.compile(r'"https://(?P<service>[^./"]+)\.(?P<namespace>[^./"]+)\.svc[:/]')


MAX_LISTED_DELETIONS = 3


def explain_rejection(message: str, action: str = "create pods") -> str:
    """Return the API server's message about a rejected request, with the next step if a webhook failed.

    `action` is what the operator can do only after the webhook answers.
    """
    webhook, service = _WEBHOOK.search(message), _SERVICE.search(message)
    if not webhook:
        return message
    target = "the target of its configuration"
    if service:
        target = f"the pods of Service `{service['service']}` in namespace `{service['namespace']}`"
    return (
        f"{message}. Webhook `{webhook['webhook']}` must answer before the operator can {action}: check {target}. "
        "Running hosts continue, and the operator retries"
    )


def describe_rejected_deletions(messages: Sequence[str]) -> str:
    """Return the messages about rejected deletions, limited to `MAX_LISTED_DELETIONS`, with the next step."""
    listed = "; ".join(explain_rejection(message, "delete it") for message in messages[:MAX_LISTED_DELETIONS])
    others = len(messages) - MAX_LISTED_DELETIONS
    return f"{listed}; and {others} more" if others > 0 else listed


def join_rejections(creation: ObjectProblem | None, deletion: ObjectProblem | None) -> ObjectProblem | None:
    """Return the rejections of a job's creations and deletions as one problem. None: nothing is rejected."""
    if creation is None or deletion is None:
        return creation or deletion
    return ObjectProblem(creation.reason, f"{creation.message}; {deletion.message}")
