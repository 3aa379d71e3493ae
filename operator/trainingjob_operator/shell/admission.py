"""Admission of TrainingJobs: turns an AdmissionReview request into an AdmissionReview response.

A rejection lists all problems of a job, with the same messages as the job's condition and the command line. The webhook
allows everything else: other kinds, deletions, and updates that do not change the spec.
"""

from collections.abc import Awaitable, Callable

from trainingjob_api.job import KIND
from trainingjob_operator.core.manifests import Manifest, text
from trainingjob_operator.shell.admission_review import NotAReviewError, find_uid, refusal
from trainingjob_operator.shell.checking import REVIEW_WAIT_SECONDS, CheckBusyError, CheckTooCostlyError, Turns
from trainingjob_operator.shell.examining import Examined, Question
from trainingjob_operator.shell.logs import Log
from trainingjob_operator.shell.ports import ClusterUnavailableError

type Examine = Callable[[bytes, str], Awaitable[Examined]]
"""Evaluate a review from a peer.

Raises `NotAReviewError`, `CheckBusyError`, `CheckTooCostlyError`.
"""
type MayUse = Callable[[Manifest, str, str], Awaitable[bool]]
"""Whether a user may use the ServiceAccount with this namespace and name."""

MAX_QUESTIONS = 4
"""Maximum number of concurrent SubjectAccessReviews."""

log = Log("webhook")


class Admission:
    """Answers AdmissionReviews of TrainingJobs."""

    def __init__(self, examine: Examine, may_use: MayUse) -> None:
        self._examine = examine
        self._may_use = may_use
        self._questions = Turns(at_once=MAX_QUESTIONS)

    async def answer(self, body: bytes, peer: str = "") -> Manifest:
        """Return the AdmissionReview response to a request body.

        Raises:
            NotAReviewError: `body` is not an AdmissionReview.
        """
        try:
            examined = await self._examine(body, peer)
            if (asked := examined.question) and not await self._is_right(asked, peer):
                return asked.refusal
        except NotAReviewError:
            raise
        except CheckTooCostlyError as error:
            log.warning("review cost too much", peer=peer, error=str(error))
            return refusal(find_uid(body), 422, f"{KIND} is refused: {error}")
        except CheckBusyError as error:
            return refusal(find_uid(body), 503, f"the operator cannot check this {KIND} now: {error}. Try again.")
        except ClusterUnavailableError as error:
            log.warning("cannot review now", error=str(error))
            words = f"the operator cannot reach the API server to check this: try again ({error})"
            return refusal(find_uid(body), 503, words)
        except Exception:
            log.exception("review broke", peer=peer)
            return refusal(find_uid(body), 500, f"the operator failed to check this {KIND}; its log says why")
        return examined.answer

    async def _is_right(self, asked: Question, peer: str) -> bool:
        """Check a permission with the API server. Limit the concurrency, so that many reviews do not overload it."""
        async with self._questions.turn(peer, text(asked.user, "username"), REVIEW_WAIT_SECONDS):
            return await self._may_use(asked.user, asked.namespace, asked.name)
