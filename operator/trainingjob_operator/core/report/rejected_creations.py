"""Rejected creations of JobSets and Jobs: the API server's message, with a next step if an admission webhook failed.

The API server calls Kueue's webhook `mjobset.kb.io` for every JobSet. While no pod of that webhook answers, no JobSet
can be created. Existing pods, and so worlds that train, do not depend on it.
"""

import re

WEBHOOK_FAILED = "failed calling webhook"
"""Part of the API server's error message if an admission webhook failed; the server itself works."""
_WEBHOOK = re.compile(rf'{WEBHOOK_FAILED} "(?P<webhook>[^"]+)"')
_SERVICE = re.compile(r'"https://(?P<service>[^./"]+)\.(?P<namespace>[^./"]+)\.svc[:/]')


def explain_rejection(message: str) -> str:
    """Return the API server's message about a rejected creation, with the next step if a webhook failed."""
    webhook, service = _WEBHOOK.search(message), _SERVICE.search(message)
    if not webhook:
        return message
    target = "the target of its configuration"
    if service:
        target = f"the pods of Service `{service['service']}` in namespace `{service['namespace']}`"
    return (
        f"{message}. Webhook `{webhook['webhook']}` must answer before the operator can create pods: check {target}. "
        "Running hosts continue, and the operator retries"
    )
