"""Entry point of the operator process: settings, logging, signal handling and exit codes."""

import asyncio
import gc
import resource
import signal
import sys

from trainingjob_operator.shell.api import connect
from trainingjob_operator.shell.assembly import ListenPorts, Operator
from trainingjob_operator.shell.interfaces import ClusterUnavailableError
from trainingjob_operator.shell.logging_setup import Log, configure_logging
from trainingjob_operator.shell.settings import InvalidSettingsError, Settings, read_settings

EXIT_BAD_SETTINGS = 2

log = Log("main")


def main() -> None:
    """Run the operator. Exit codes: 0 after a signal, 1 after an error, 2 for invalid settings."""
    try:
        settings = read_settings()
    except InvalidSettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_BAD_SETTINGS)
    configure_logging(settings.log_level, settings.log_format)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # the usual default of 1024 limits the number of hosts
    gc.freeze()  # exclude permanent objects: a full collection over them delays webhook answers
    try:
        asyncio.run(operate(settings))
    except (ClusterUnavailableError, OSError) as error:
        log.error("cannot operate", error=str(error))
        sys.exit(1)
    except Exception:
        log.exception("the operator failed")
        sys.exit(1)


async def operate(settings: Settings, ports: ListenPorts = ListenPorts()) -> None:  # noqa: B008  # a frozen value
    """Run the operator until SIGTERM or SIGINT.

    Raises:
        ClusterUnavailableError: no API server is reachable.
        OSError: a port is already in use.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with await connect() as api:
        log.info("operating", namespaces=",".join(settings.namespaces) or "all", host=settings.host)
        await Operator(settings, api).run(stop, ports)
        log.info("stopped")


if __name__ == "__main__":
    main()
