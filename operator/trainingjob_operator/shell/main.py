"""Entry point of the operator's program: its modes, settings, logging, signal handling and exit codes.

The reconciler has a leader; the webhook is stateless. They are separate processes, so that jobs are reviewed while the
reconciler restarts.
"""

import asyncio
import gc
import resource
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from trainingjob_operator.shell.assembly import Operator
from trainingjob_operator.shell.installation_check import InstallationError, check_installation
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.log_level import following_log_level
from trainingjob_operator.shell.logging_setup import Log, configure_logging
from trainingjob_operator.shell.login import connect
from trainingjob_operator.shell.process import ListenPorts
from trainingjob_operator.shell.settings import (
    RENDEZVOUS_PORT,
    InvalidSettingsError,
    Settings,
    environment_variable,
    read_settings,
)
from trainingjob_operator.shell.webhook_server import WebhookServer

EXIT_BAD_SETTINGS = 2
GC_THRESHOLDS = (50_000, 10, 100)
"""Thresholds of the garbage collector.

One reconcile of 4,096 hosts creates about 50,000 objects that live as long as the reconcile. By the defaults, the
collector would move them to its oldest generation, and often scan all objects of the store for them.
"""
SWITCH_SECONDS = 0.00005
"""Time for which a thread keeps the interpreter while another one waits for it.

The event loop gives it up at each read and write. By the default of 5 ms, the thread that reads the watch events of
thousands of pods would let the loop make 200 system calls a second.
"""

log = Log("main")


def main(arguments: Sequence[str] = ()) -> None:
    """Run the operator, its webhook, or a test of the installation.

    Exit codes: 0 after a signal or a successful test, 1 after an error, 2 for invalid settings.
    """
    try:
        match [*arguments]:
            case []:
                settings = read_settings()
                coroutine = operate(settings, find_ports(settings))
            case ["webhook"]:
                settings = read_settings()
                coroutine = review(settings, find_certificates(settings), find_ports(settings))
            case ["test", namespace]:
                settings = Settings(trainer_image="", log_format="text")
                coroutine = check(namespace)
            case _:
                message = "must be 'webhook', 'test NAMESPACE', or nothing for the reconciler."
                raise InvalidSettingsError(f"'{' '.join(arguments)}' {message}")
    except InvalidSettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_BAD_SETTINGS)
    configure_logging(settings.log_level, settings.log_format)
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    # The usual default of 1024 would limit the number of hosts.
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    gc.freeze()  # exclude permanent objects: a full collection over them delays webhook answers
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        asyncio.run(coroutine)
    except (ClusterUnavailableError, InstallationError, OSError) as error:
        log.error("cannot operate", error=str(error))
        sys.exit(1)
    except Exception:
        log.exception("the operator failed")
        sys.exit(1)


def find_ports(settings: Settings) -> ListenPorts:
    """Return the ports of the settings."""
    return ListenPorts(settings.webhook_port, RENDEZVOUS_PORT, settings.metrics_port, settings.metrics_tls_port)


def find_certificates(settings: Settings) -> Path:
    """Return the folder of the webhook's certificates. Raises `InvalidSettingsError` if the settings name none."""
    if settings.certificates is None:
        raise InvalidSettingsError(f"{environment_variable('certificates')}: must be a folder, which the chart mounts.")
    return settings.certificates


async def operate(settings: Settings, ports: ListenPorts) -> None:
    """Run the operator until SIGTERM or SIGINT.

    Raises:
        ClusterUnavailableError: no API server is reachable.
        OSError: a port is already in use.
    """
    stop = stop_on_signals()
    async with following_log_level(settings.log_level_file), await connect() as api:
        log.info("operating", namespaces=",".join(settings.namespaces) or "all", host=settings.host)
        await Operator(settings, api).run(stop, ports)
        log.info("stopped")


async def review(settings: Settings, certificates: Path, ports: ListenPorts) -> None:
    """Run the webhook until SIGTERM or SIGINT. Raises the errors of `operate`."""
    stop = stop_on_signals()
    async with following_log_level(settings.log_level_file), await connect() as api:
        log.info("reviewing", host=settings.webhook_host)
        await WebhookServer(settings, api, certificates).run(stop, ports)
        log.info("stopped")


async def check(namespace: str) -> None:
    """Test the installation. Raises `InstallationError` if it does not work, and `ClusterUnavailableError`."""
    async with await connect() as api:
        await check_installation(api, namespace)


def stop_on_signals() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


if __name__ == "__main__":
    main(sys.argv[1:])
