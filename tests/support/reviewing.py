"""Reviews that are examined in the test's own process, by a check of the test's choice."""

from trainingjob_operator.shell.admission import EvaluateReview
from trainingjob_operator.shell.review_evaluation import Check, ReviewResult, evaluate_review


def examine_here(check: Check, namespaces: tuple[str, ...] = ()) -> EvaluateReview:
    """Return what examines reviews as the webhook's process does."""

    async def run(body: bytes, peer: str) -> ReviewResult:
        del peer
        return evaluate_review(body, check, namespaces)

    return run
