"""The metrics section: the addresses of servers."""

import pytest

from trainingjob_api.spec.metrics import Trackio

TOKEN = {"secretKeyRef": {"name": "keys", "key": "token"}}


@pytest.mark.parametrize(
    ("place", "address"),
    [
        ({"serverUrl": "https://trackio.example.com/"}, "https://trackio.example.com"),
        ({"space": "My_Team/metrics.v2"}, "https://my-team-metrics-v2.hf.space"),
    ],
)
def test_trackio_has_one_address(place: dict[str, str], address: str) -> None:
    assert Trackio.model_validate({"project": "research", "token": TOKEN, **place}).address == address
