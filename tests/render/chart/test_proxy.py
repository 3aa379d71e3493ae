"""Variables of a proxy: the API server is not behind it, as its address in NO_PROXY says."""

from typing import Any

import pytest

OPERATOR, WEBHOOK, TEST = "trainingjob-operator", "trainingjob-operator-webhook", "trainingjob-operator-test"
SERVER = "$(KUBERNETES_SERVICE_HOST)"
PROXY = {"name": "HTTPS_PROXY", "value": "http://proxy.example:3128"}
FROM_SECRET = {"name": "NO_PROXY", "valueFrom": {"secretKeyRef": {"name": "proxy", "key": "no"}}}


def variables(chart: Any, extra: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    values = {"extraEnv": extra}
    if name == TEST:
        (container,) = chart.find("Pod", values, name)["spec"]["containers"]
    else:
        (container,) = chart.find("Deployment", values, name)["spec"]["template"]["spec"]["containers"]
    return [one for one in container.get("env", []) if not one["name"].startswith("TRAININGJOB_")]


@pytest.mark.parametrize("name", [OPERATOR, WEBHOOK, TEST])
@pytest.mark.parametrize(
    ("extra", "wanted"),
    [
        ([], []),
        ([{"name": "TEAM", "value": "ml"}], [{"name": "TEAM", "value": "ml"}]),
        ([{"name": "NO_PROXY", "value": "svc"}], [{"name": "NO_PROXY", "value": "svc"}]),
        ([PROXY], [PROXY, {"name": "NO_PROXY", "value": SERVER}]),
        (
            [{"name": "http_proxy", "value": "p:1"}],
            [{"name": "http_proxy", "value": "p:1"}, {"name": "NO_PROXY", "value": SERVER}],
        ),
        ([{"name": "NO_PROXY", "value": ".svc"}, PROXY], [{"name": "NO_PROXY", "value": f".svc,{SERVER}"}, PROXY]),
        ([PROXY, {"name": "no_proxy", "value": ""}], [PROXY, {"name": "no_proxy", "value": SERVER}]),
        ([PROXY, FROM_SECRET], [PROXY, FROM_SECRET]),
    ],
    ids=["none", "another", "no proxy", "proxy", "lower case", "with NO_PROXY", "empty NO_PROXY", "from a Secret"],
)
def test_no_proxy_has_the_address_of_the_api_server(
    chart, name: str, extra: list[dict[str, Any]], wanted: list[dict[str, Any]]
) -> None:
    assert variables(chart, extra, name) == wanted
