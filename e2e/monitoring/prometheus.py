"""A real Prometheus on this machine, built from its Go module once, with the rules of the chart."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.cluster.go_tools import GoTools
from e2e.cluster.run_program import ClusterError, wait_until

MODULE = "github.com/prometheus/prometheus"
BUILD = GoTools(
    Path(__file__).parent / "tools",
    {name: f"{MODULE}/cmd/{name}" for name in ("prometheus", "promtool")},
    "monitoring",
    "10 minutes",
    tags="remove_all_sd",  # no discovery of clouds: the targets are static
)
START_SECONDS = 60.0


class Prometheus:
    """The HTTP API of a Prometheus."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a response. Raises `ClusterError` with the message of a rejected request."""
        url = f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=10) as response:  # noqa: S310  # our own process
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            raise ClusterError(f"{path} {parameters}: {error.read().decode()[:500]}") from error
        except OSError as error:
            raise ClusterError(f"{url}: {error}") from error

    def query(self, expression: str) -> list[Any]:
        """Return the series of an instant query. Raises `ClusterError` if the expression is invalid."""
        return list(self.get("query", query=expression)["result"])

    def alert_states(self) -> dict[str, str]:
        """Return the state of each alert rule. Raises `ClusterError` if the evaluation of a rule failed."""
        rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"]]
        for rule in rules:
            if rule["health"] == "err":
                raise ClusterError(f"{rule['name']}: {rule.get('lastError')}")
        return {rule["name"]: rule["state"] for rule in rules}


@contextmanager
def running_prometheus(folder: Path, port: int, targets: Mapping[str, int], rules: Any) -> Iterator[Prometheus]:
    """Run Prometheus while the context lasts. `targets` are ports of exporters on loopback by the name of their pod.

    Raises:
        ClusterError: Prometheus cannot be built, or does not start.
    """
    BUILD.ensure(["prometheus"])
    static = [{"targets": [f"127.0.0.1:{at}"], "labels": {"pod": pod}} for pod, at in targets.items()]
    (folder / "rules.json").write_text(json.dumps(rules))  # JSON is YAML
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.json"],
        "scrape_configs": [{"job_name": "trainingjob", "honor_labels": True, "static_configs": static}],
    }
    (folder / "prometheus.json").write_text(json.dumps(config))
    data = folder / "data"
    command = [
        str(BUILD.binaries / "prometheus"),
        f"--config.file={folder / 'prometheus.json'}",
        f"--storage.tsdb.path={data}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            prometheus = Prometheus(port)
            try:
                wait_until(lambda: bool(prometheus.get("rules")), "Prometheus to answer", seconds=START_SECONDS)
            except ClusterError as error:
                log_end = (folder / "prometheus.log").read_text()[-2000:]
                raise ClusterError(f"{error}\n{log_end}") from error
            yield prometheus
        finally:
            process.terminate()
            process.wait()
            shutil.rmtree(data, ignore_errors=True)
