"""The trainer process: a standby that has imported everything and traced the model, then one world, then exit.

Before its world, the process may wait in a hot standby world, connected to the others and with its programs loaded.

The process uses no device before it knows its world: on most platforms one process owns the devices. It always exits
with `os._exit`: an exception that reaches the interpreter's exit would shut the JAX world down. That would abort every
process of the world half a minute later, without naming the cause.
"""

import faulthandler
import gc
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import BinaryIO, NoReturn

from trainingjob_api.world import RunConfig
from trainingjob_trainer.asks import Asks
from trainingjob_trainer.ending import end_at_once, end_with_parent
from trainingjob_trainer.events import ORPHANED, Events
from trainingjob_trainer.failures import explain
from trainingjob_trainer.missed import is_about_to_tell
from trainingjob_trainer.modelling.model import split_model
from trainingjob_trainer.preflight import expect_digests
from trainingjob_trainer.program_key import hash_modules
from trainingjob_trainer.run import run
from trainingjob_trainer.wire import CONFIG_VARIABLE, STANDBY, Command, Event, Start

LOG = logging.getLogger(__name__)
FAILED = 1
WORD_SECONDS = 10
"""Seconds that JAX gets to name the lost process after an error about a late peer. The world fails in any case."""
OWN_TITLE = Path("/proc/self/comm")
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def main() -> NoReturn:
    """Wait for a world, train in it, and exit."""
    end_with_parent()
    # `force` replaces the handler that an imported library has installed.
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT, force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("jax").setLevel(logging.WARNING)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # dumps the stacks of a hung process
    events = Events.from_environment(os.environ)
    asks = Asks()

    def ask_to_leave(number: int, frame: FrameType | None) -> None:
        asks.leave()

    signal.signal(signal.SIGTERM, ask_to_leave)
    _take_title(STANDBY)
    rehearse(os.environ)
    gc.freeze()  # imported objects stay: the collector need not scan them while a world starts
    events.send(Event(ready=True))
    line = sys.stdin.buffer.readline()
    if not line:
        end_at_once(0)
    try:
        start = Start.model_validate_json(line)
        _take_title(start.title)
        worlds: SimpleQueue[Start] = SimpleQueue()
        threading.Thread(
            target=_obey, args=(sys.stdin.buffer, asks, worlds if start.waits else None), name="commands", daemon=True
        ).start()

        def hear_world() -> Start:
            world = worlds.get()
            _take_title(world.title)
            return world

        run(start, events, asks, hear_world)
    except BaseException as error:  # report any failure to the agent, then exit
        LOG.exception("training failed step=%s", events.step)
        give_up(error, events)
    end_at_once(0)


def give_up(error: BaseException, events: Events) -> NoReturn:
    """Report to the agent why training failed, and exit.

    If JAX is about to name a lost process, wait for that first: its message is more precise.
    """
    if is_about_to_tell(str(error)):
        time.sleep(WORD_SECONDS)  # JAX then ends this process, and the agent reads the name from its log
    events.send(Event(failure=explain(error, step=events.step)))
    end_at_once(FAILED)


def rehearse(environment: Mapping[str, str]) -> None:
    """Warm up without a device: compute the preflight digests, hash the sources, and trace the pod's model."""
    expect_digests()
    hash_modules()
    path = environment.get(CONFIG_VARIABLE)
    if not path:
        return
    try:
        spec = RunConfig.model_validate_json(Path(path).read_bytes()).spec
        split_model(spec.model, spec.precision, spec.memory)
    except Exception:  # the error recurs in the world, which reports it
        LOG.exception("cannot trace the model in advance")


def _take_title(title: str) -> None:
    """Set the process title, which `ps` and `top` show."""
    with suppress(OSError):
        OWN_TITLE.write_text(title)


def _obey(commands: BinaryIO, asks: Asks, worlds: "SimpleQueue[Start] | None") -> None:
    """Execute the agent's commands; a hot standby first receives the `Start` of its world.

    Exit when the agent is gone: an unsupervised trainer must neither train nor wait.
    """
    if worlds is not None and (line := commands.readline()):
        worlds.put(Start.model_validate_json(line))
    for line in commands:
        command = Command.model_validate_json(line)
        if command.leave:
            asks.leave()
        if command.move:
            asks.move()
        if command.poison:
            asks.poison()
    end_at_once(ORPHANED)


if __name__ == "__main__":
    main()
