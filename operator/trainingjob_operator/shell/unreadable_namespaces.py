"""Watched namespaces that the operator may not list: they were deleted with the operator's rights in them.

Their jobs wait, and the jobs of all other namespaces do not.
"""

from trainingjob_operator.shell.logging_setup import Log

log = Log("feed")


class UnreadableNamespaces:
    """Namespaces in which a list is forbidden. A change of a namespace is logged once.

    A namespace is readable again after a round in which no list failed. Before that, pods of a job can be unknown.
    """

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}  # by namespace
        self._forbidden: set[str] = set()  # in the current round of lists

    def add(self, namespace: str, reason: str) -> None:
        """Record a forbidden list."""
        if namespace not in self._reasons:
            log.warning(
                "cannot list a watched namespace; its jobs wait, other namespaces are not affected",
                namespace=namespace,
                error=reason,
            )
        self._reasons[namespace] = reason
        self._forbidden.add(namespace)

    def is_forbidden(self, namespace: str) -> bool:
        """Return whether a list of this round was forbidden in a namespace."""
        return namespace in self._forbidden

    def end_round(self, *, is_complete: bool) -> None:
        """End a round of lists of these namespaces; `is_complete`: no list failed for another reason."""
        if is_complete:
            for namespace in self._reasons.keys() - self._forbidden:
                del self._reasons[namespace]
                log.info("can list a watched namespace now", namespace=namespace)
        self._forbidden.clear()

    def names(self) -> frozenset[str]:
        """Return the unreadable namespaces."""
        return frozenset(self._reasons)

    def reason(self, namespace: str) -> str:
        """Return why a namespace is unreadable. Empty: it is readable."""
        return self._reasons.get(namespace, "")
