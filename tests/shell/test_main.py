"""The process ends by a signal, and its exit code states the result."""

import asyncio
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import pytest

from trainingjob_operator import launch
from trainingjob_operator.shell import main as main_module
from trainingjob_operator.shell.kinds import LEASE
from trainingjob_operator.shell.main import EXIT_BAD_SETTINGS, main, operate
from trainingjob_operator.shell.process import ListenPorts
from trainingjob_operator.shell.settings import Settings

SETTINGS = Settings(trainer_image="t")
PATIENCE_SECONDS = 60.0


@pytest.fixture(autouse=True)
def outside_a_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Any):
    """Hide clusters and kubeconfigs of this machine, and leave the log unchanged."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setattr("kubernetes.aio.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
    monkeypatch.setattr(main_module, "configure_logging", lambda level, form: None)
    for name in [name for name in os.environ if name.startswith("TRAININGJOB_")]:
        monkeypatch.delenv(name)
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    yield tmp_path / "config"
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


def test_invalid_settings_are_reported_and_end_the_operator(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("TRAININGJOB_LOG_LEVEL", "loud")

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == EXIT_BAD_SETTINGS
    assert "TRAININGJOB_TRAINER_IMAGE: must name" in (err := capsys.readouterr().err)
    assert "TRAININGJOB_LOG_LEVEL: 'loud'" in err


ARGUMENTS = {
    "an unknown mode": (["webhooks"], "'webhooks' must be 'webhook', 'test NAMESPACE', or nothing for the reconciler."),
    "a webhook without certificates": (["webhook"], "TRAININGJOB_CERTIFICATES: must be a folder"),
}


@pytest.mark.parametrize(("arguments", "words"), ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_invalid_mode_ends_the_program(
    monkeypatch: pytest.MonkeyPatch, capsys: Any, arguments: Any, words: str
) -> None:
    monkeypatch.setenv("TRAININGJOB_TRAINER_IMAGE", "t")

    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == EXIT_BAD_SETTINGS
    assert words in capsys.readouterr().err


def test_the_webhook_has_the_ports_and_certificates_of_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def record(settings: Settings, certificates: Any, ports: ListenPorts) -> None:
        started.append((str(certificates), ports))

    started: list[tuple[str, ListenPorts]] = []
    monkeypatch.setattr(main_module, "review", record)
    variables = {"TRAINER_IMAGE": "t", "CERTIFICATES": "/tls", "WEBHOOK_PORT": "10250", "METRICS_PORT": "9090"}
    for name, value in variables.items():
        monkeypatch.setenv(f"TRAININGJOB_{name}", value)
    main(["webhook"])

    assert started == [("/tls", ListenPorts(webhook=10250, metrics=9090))]


def test_missing_cluster_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TRAININGJOB_TRAINER_IMAGE", "t")

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    assert "cannot operate" in caplog.messages


def test_unexpected_error_has_a_traceback(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def break_down(settings: Settings, ports: ListenPorts) -> None:
        raise ZeroDivisionError

    monkeypatch.setenv("TRAININGJOB_TRAINER_IMAGE", "t")
    monkeypatch.setattr(main_module, "operate", break_down)

    with pytest.raises(SystemExit) as ended:
        main()

    assert ended.value.code == 1
    assert "ZeroDivisionError" in caplog.text


def test_modules_are_imported_without_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(arguments: list[str]) -> None:
        started.append((gc.isenabled(), gc.get_freeze_count() > 0))

    started: list[tuple[bool, bool]] = []
    monkeypatch.setattr(main_module, "main", run)
    launch.main()

    assert started == [(True, True)]


def measure_in_operator[Value](monkeypatch: pytest.MonkeyPatch, measure: Callable[[], Value]) -> Value:
    """Return what a function returns in the operator's event loop."""

    async def operate(settings: Settings, ports: ListenPorts) -> None:
        measured.append(measure())

    measured: list[Value] = []
    monkeypatch.setenv("TRAININGJOB_TRAINER_IMAGE", "t")
    monkeypatch.setattr(main_module, "operate", operate)
    main()
    return measured[0]


def test_code_and_tables_are_left_out_of_collections(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure_in_operator(monkeypatch, gc.get_freeze_count) > 100_000


def test_objects_of_one_evaluation_cause_no_collection_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def list_collections() -> list[int]:
        generations: list[int] = []
        collect = lambda phase, info: generations.append(info["generation"]) if phase == "start" else None  # noqa: E731
        gc.callbacks.append(collect)
        for _ in range(3):
            [[number] for number in range(50_000)]
        gc.callbacks.remove(collect)
        return generations

    collected = measure_in_operator(monkeypatch, list_collections)

    assert len(collected) < 10
    assert 2 not in collected


def test_event_loop_soon_has_the_interpreter_again_while_a_thread_reads_events(monkeypatch: pytest.MonkeyPatch) -> None:
    assert measure_in_operator(monkeypatch, sys.getswitchinterval) <= 0.001


def write_kubeconfig(path: Any, url: str) -> None:
    path.write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: k, user: u}}],"
        f" clusters: [{{name: k, cluster: {{server: '{url}'}}}}], users: [{{name: u, user: {{token: t}}}}]}}"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_well(
    number: signal.Signals,
    server: Any,
    outside_a_cluster: Any,
    unused_tcp_port_factory: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    write_kubeconfig(outside_a_cluster, server[1])
    ports = ListenPorts(*(unused_tcp_port_factory() for _ in range(3)))
    running = asyncio.create_task(operate(SETTINGS, ports))
    async with asyncio.timeout(PATIENCE_SECONDS):
        while "leading" not in caplog.messages:  # noqa: ASYNC110  # the log has no event
            await asyncio.sleep(0.02)

    os.kill(os.getpid(), number)
    async with asyncio.timeout(PATIENCE_SECONDS):
        await running

    assert caplog.messages[-1] == "stopped"
    lease = server[0].find(LEASE, SETTINGS.namespace, SETTINGS.service)
    assert lease["spec"]["holderIdentity"] == "", "another may take over at once"


async def test_a_port_that_is_taken_ends_it(server: Any, outside_a_cluster: Any) -> None:
    write_kubeconfig(outside_a_cluster, server[1])
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()

        with pytest.raises(OSError, match="address already in use"):
            await operate(SETTINGS, ListenPorts(0, 0, taken.getsockname()[1]))
