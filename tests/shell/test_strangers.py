"""A token of a foreign pod costs the API server few requests, and delays no other client."""

import asyncio
import base64
from typing import Any

import pytest

from tests.support.tokens import make_token
from trainingjob_api.protocol import TOKEN_AUDIENCE
from trainingjob_operator.shell.authentication import MAX_REVIEWS, PodAuthenticator, has_operator_audience
from trainingjob_operator.shell.interfaces import BusyError, UnauthenticatedCallerError
from trainingjob_operator.shell.reviews import MAX_WAITING
from trainingjob_operator.shell.store import Store

NOT_OURS = {
    "no JSON web token": "garbage",
    "two parts": "a.b",
    "no JSON inside": "a.!!!.c",
    "a list inside": f"a.{base64.urlsafe_b64encode(b'[1]').decode()}.c",
    "deep inside": f"a.{base64.urlsafe_b64encode(b'[' * 9000).decode()}.c",
    "no signature": make_token().rpartition(".")[0] + ".",
    "another audience": make_token(audience=["https://kubernetes.default.svc"]),
    "no audience": make_token(audience=None),
    "an audience of a wrong type": make_token(audience={TOKEN_AUDIENCE: 1}),
    "letters beyond ASCII": make_token() + "\u00e4",
}


@pytest.mark.parametrize("token", NOT_OURS.values(), ids=NOT_OURS.keys())
async def test_token_for_another_audience_needs_no_request(
    token: str, authenticator: PodAuthenticator, api_server: Any
) -> None:
    with pytest.raises(UnauthenticatedCallerError, match="not a JSON web token for"):
        await authenticator.authenticate(token)

    assert api_server.requests == []


@pytest.mark.parametrize("audience", [TOKEN_AUDIENCE, [TOKEN_AUDIENCE, "b"]], ids=["text", "list"])
def test_a_token_names_its_audience_in_either_form(audience: Any) -> None:
    assert has_operator_audience(make_token(audience=audience))


class SlowReviews:
    """Stands in for the API server: a test ends its token reviews."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go_on = asyncio.Event()

    async def create(self, kind: Any, manifest: Any) -> Any:
        self.asked.append(manifest["spec"]["token"])
        await self.go_on.wait()
        return {"status": {"authenticated": False}}


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_foreign_callers_have_few_reviews_in_flight_and_take_turns(store: Store) -> None:
    api = SlowReviews()
    authenticator = PodAuthenticator(api, store)  # type: ignore[arg-type]
    flood = [
        asyncio.create_task(authenticator.authenticate(make_token(f"bad-{number}"), "10.0.0.66"))
        for number in range(200)
    ]
    await settle()
    mine = asyncio.create_task(authenticator.authenticate(make_token("mine"), "10.0.0.1"))
    await settle()

    assert len(api.asked) == MAX_REVIEWS
    busy = [task.exception() for task in flood if task.done()]
    assert len(busy) == 200 - MAX_REVIEWS - MAX_WAITING
    assert all(isinstance(error, BusyError) for error in busy)
    api.go_on.set()
    await asyncio.gather(mine, *flood, return_exceptions=True)
    assert api.asked.index(make_token("mine")) <= MAX_REVIEWS + 1, "the flood waits for itself"
