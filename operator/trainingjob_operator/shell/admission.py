"""Admission of TrainingJobs: turns an AdmissionReview request into an AdmissionReview response.

A rejection lists all problems of a job, with the same messages as the job's condition and the command line. A new job
must be in a namespace that the operator watches, since the operator reports nothing elsewhere. The webhook allows
everything else: other kinds, deletions, and updates that do not change the spec.
"""

from collections.abc import Awaitable, Callable

from trainingjob_api.spec.job import KIND
from trainingjob_operator.core.manifests import Manifest, get_text
from trainingjob_operator.shell.admission_review import NotAReviewError, deny_response, scan_uid
from trainingjob_operator.shell.check_pool import REVIEW_WAIT_SECONDS, CheckBusyError, CheckCpuLimitError, FairQueue
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.logging_setup import Log
from trainingjob_operator.shell.review_evaluation import AccessCheck, ReviewResult

type EvaluateReview = Callable[[bytes, str], Awaitable[ReviewResult]]
"""Evaluate a review from a peer.

Raises `NotAReviewError`, `CheckBusyError`, `CheckCpuLimitError`.
"""
type MayUse = Callable[[Manifest, str, str], Awaitable[bool]]
"""Whether a user may use the ServiceAccount with this namespace and name."""
type HasKueue = Callable[[], Awaitable[bool]]
"""Whether Kueue is installed."""

MAX_ACCESS_REVIEWS = 4
"""Maximum number of concurrent SubjectAccessReviews."""

log = Log("webhook")


async def _assume_kueue() -> bool:
    return True


class Admission:
    """Answers AdmissionReviews of TrainingJobs."""

    def __init__(self, evaluate: EvaluateReview, may_use: MayUse, has_kueue: HasKueue = _assume_kueue) -> None:
        self._evaluate = evaluate
        self._may_use = may_use
        self._has_kueue = has_kueue
        self._access_review_queue = FairQueue(at_once=MAX_ACCESS_REVIEWS)

    async def review(self, body: bytes, peer: str = "") -> Manifest:
        """Return the AdmissionReview response to a request body.

        Raises:
            NotAReviewError: `body` is not an AdmissionReview.
        """
        try:
            result = await self._evaluate(body, peer)
            if (access_check := result.access_check) and not await self._is_permitted(access_check, peer):
                return access_check.refusal
            if result.answer_without_kueue and not await self._has_kueue():
                return result.answer_without_kueue
        except NotAReviewError:
            raise
        except CheckCpuLimitError as error:
            log.warning("review exceeded its CPU time", peer=peer, error=str(error))
            return deny_response(scan_uid(body), 422, f"the {KIND} is rejected: {error}")
        except CheckBusyError as error:
            return deny_response(scan_uid(body), 503, f"the operator cannot check this {KIND} now: {error}. Try again.")
        except ClusterUnavailableError as error:
            log.warning("cannot review now", error=str(error))
            message = f"the operator cannot reach the API server to check this {KIND}: {error}. Try again."
            return deny_response(scan_uid(body), 503, message)
        except Exception:
            log.exception("review failed", peer=peer)
            return deny_response(
                scan_uid(body), 500, f"the operator failed to check this {KIND}. Its log has the error."
            )
        return result.answer

    async def _is_permitted(self, access_check: AccessCheck, peer: str) -> bool:
        """Check a permission with the API server. Limit the concurrency, so that many reviews do not overload it."""
        async with self._access_review_queue.acquire(
            peer, get_text(access_check.user, "username"), REVIEW_WAIT_SECONDS
        ):
            return await self._may_use(access_check.user, access_check.namespace, access_check.name)
