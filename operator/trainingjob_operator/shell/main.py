"""The process: settings, log, operating until a signal, and an exit code that says how that went."""

import asyncio
import gc
import resource
import signal
import sys

from trainingjob_operator.shell.api import connect
from trainingjob_operator.shell.assembly import Operator, Ports
from trainingjob_operator.shell.logs import Log, set_up
from trainingjob_operator.shell.ports import ClusterUnavailableError
from trainingjob_operator.shell.settings import InvalidSettingsError, Settings, read_settings

EXIT_BAD_SETTINGS = 2

log = Log("main")


def main() -> None:
    """Run the operator. Exit codes: 0 after a signal, 1 when it broke, 2 where its settings cannot be used."""
    try:
        settings = read_settings()
    except InvalidSettingsError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(EXIT_BAD_SETTINGS)
    set_up(settings.log_level, settings.log_format)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # runtimes begin with 1024, fewer than hosts connect
    gc.freeze()  # code and tables stay; a collection that passes over them all keeps a webhook's caller waiting
    try:
        asyncio.run(operate(settings))
    except (ClusterUnavailableError, OSError) as error:
        log.error("cannot operate", error=str(error))
        sys.exit(1)
    except Exception:
        log.exception("the operator broke")
        sys.exit(1)


async def operate(settings: Settings, ports: Ports = Ports()) -> None:  # noqa: B008  # a frozen value
    """Operate until SIGTERM or SIGINT.

    Raises:
        ClusterUnavailableError: there is no cluster to operate in.
        OSError: a port is taken.
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
