"""The trainer process: a standby that has imported everything and traced the model, then one world, then the end.

Before its world it may wait in a shadow world, connected to the others and with its programs loaded.

Nothing here touches a device before a world is known: on most platforms one process owns them. The end is always
`os._exit`: an exception that reaches the interpreter's exit would shut the JAX world down and abort every process in
it, half a minute later and without a name.
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
"""How long a process whose peer is late gives JAX to say who is gone: a world without that one is dead in any case."""
OWN_TITLE = Path("/proc/self/comm")
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def main() -> NoReturn:
    """Wait for a world, train in it, and end."""
    end_with_parent()
    # By force: a library that was imported above has put its own handler in place.
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT, force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)
    logging.getLogger("jax").setLevel(logging.WARNING)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)  # the stacks of a process that hangs
    events = Events.from_environment(os.environ)
    asks = Asks()

    def ask_to_leave(number: int, frame: FrameType | None) -> None:
        asks.leave()

    signal.signal(signal.SIGTERM, ask_to_leave)
    _take_title(STANDBY)
    rehearse(os.environ)
    gc.freeze()  # what is imported stays: nobody who waits for a world waits for the collector to look through it
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
    except BaseException as error:  # whatever it is, the agent hears of it and the process ends
        LOG.exception("training failed step=%s", events.step)
        give_up(error, events)
    end_at_once(0)


def give_up(error: BaseException, events: Events) -> NoReturn:
    """Tell the agent why training cannot go on, unless JAX is about to tell it better, and end."""
    if is_about_to_tell(str(error)):
        time.sleep(WORD_SECONDS)  # JAX ends this process when it does, and the agent reads whom it names
    events.send(Event(failure=explain(error, step=events.step)))
    end_at_once(FAILED)


def rehearse(environment: Mapping[str, str]) -> None:
    """Do in advance what a world of the pod's config will need and no device is needed for."""
    expect_digests()
    hash_modules()
    path = environment.get(CONFIG_VARIABLE)
    if not path:
        return
    try:
        spec = RunConfig.model_validate_json(Path(path).read_bytes()).spec
        split_model(spec.model, spec.precision, spec.memory)
    except Exception:  # it will come again in the world, which can tell of it
        LOG.exception("cannot trace the model in advance")


def _take_title(title: str) -> None:
    """Let whoever looks at a pod's processes tell them apart."""
    with suppress(OSError):
        OWN_TITLE.write_text(title)


def _obey(commands: BinaryIO, asks: Asks, worlds: "SimpleQueue[Start] | None") -> None:
    """Follow the agent's commands, before which may come a world. When they end the agent is gone.

    Nobody may train unseen, nor wait.
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
