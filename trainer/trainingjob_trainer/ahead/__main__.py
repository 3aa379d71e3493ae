"""Compile programs of one size of a job, for a possible later world: a `Request` comes on standard input.

The process exits when its parent exits, which closes standard input, and before it exceeds its memory limit.
"""

import logging
import select
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import jax

from trainingjob_trainer.ahead.memory import own_memory
from trainingjob_trainer.ahead.pretence import pretend
from trainingjob_trainer.ahead.request import Request
from trainingjob_trainer.ending import end_at_once
from trainingjob_trainer.events import ORPHANED
from trainingjob_trainer.feeding.batches import Batches
from trainingjob_trainer.modelling.mesh import build_mesh
from trainingjob_trainer.modelling.step import Steps
from trainingjob_trainer.programs import FOLDER, Programs
from trainingjob_trainer.remembering.recall import compile_spread
from trainingjob_trainer.replicas import compile_sums
from trainingjob_trainer.world import Peers, configure

LOG = logging.getLogger(__name__)
WATCH_SECONDS = 0.2
COMPILED, FAILED, TOO_LARGE = 0, 1, 4


def main() -> NoReturn:
    """Compile the requested programs."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s", force=True)
    request = Request.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(target=_watch, args=(request.memory_bytes,), name="watch", daemon=True).start()
    try:
        compile_ahead(request)
    except Exception:
        LOG.exception("cannot compile ahead")
        end_at_once(FAILED)
    end_at_once(COMPILED)


def compile_ahead(request: Request) -> None:
    """Write the requested programs to the shared folder."""
    config, spec = request.config, request.config.spec
    layout, root = config.layout(request.num_slices), Path(spec.checkpoint.uri)
    configure(config.accelerator_platform, layout)
    pretend(layout)
    programs = Programs(str(root / FOLDER), root, config, layout, Peers(0, 1), request.program_secret)
    steps = Steps(spec, build_mesh(jax.devices(), layout))
    batches = Batches(layout, steps.rows, spec.training.global_batch_size)
    ways: dict[str, Callable[[], object]] = {
        "train": lambda: steps.compile_train(programs, batches.shape),
        "evaluate": lambda: steps.compile_evaluate(programs, batches.shape),
        "spread": lambda: compile_spread(programs, steps.state),
        "replicas": lambda: compile_sums(programs, steps.state),
    }
    for name in request.names:
        ways[name]()


def _watch(memory_bytes: int) -> None:
    while not select.select([sys.stdin], [], [], WATCH_SECONDS)[0]:
        if (taken := own_memory()) > memory_bytes:
            LOG.error("it takes %d bytes of memory, and %d are left for it", taken, memory_bytes)
            end_at_once(TOO_LARGE)
    end_at_once(ORPHANED)


if __name__ == "__main__":
    main()
