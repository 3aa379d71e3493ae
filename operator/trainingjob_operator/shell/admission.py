"""What the webhook answers: an AdmissionReview in, an AdmissionReview out.

A job is refused with all that is wrong with it, in the words that the condition and the command line use too. What the
webhook was not asked for it lets pass: it must never stand in the way of anybody else's objects, of deletion, or of a
change that leaves the spec as it is.
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
"""Examine a review that came from a peer.

Raises `NotAReviewError`, `CheckBusyError`, `CheckTooCostlyError`.
"""
type MayUse = Callable[[Manifest, str, str], Awaitable[bool]]
"""Whether a user may use the ServiceAccount of a namespace and a name."""

MAX_QUESTIONS = 4
"""Questions about rights that the API server is asked at a time."""

log = Log("webhook")


class Admission:
    """Answers reviews of TrainingJobs."""

    def __init__(self, examine: Examine, may_use: MayUse) -> None:
        """Examine reviews by one function and the right to a ServiceAccount by another."""
        self._examine = examine
        self._may_use = may_use
        self._questions = Turns(at_once=MAX_QUESTIONS)

    async def answer(self, body: bytes, peer: str = "") -> Manifest:
        """Return the AdmissionReview that answers one.

        Raises:
            NotAReviewError: `body` is none.
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
        """Ask the API server, which a flood of reviews must not keep busy."""
        async with self._questions.turn(peer, text(asked.user, "username"), REVIEW_WAIT_SECONDS):
            return await self._may_use(asked.user, asked.namespace, asked.name)
