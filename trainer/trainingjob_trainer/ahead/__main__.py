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

from trainingjob_trainer.ahead.memory import resident_memory
from trainingjob_trainer.ahead.pretence import fake_topology
from trainingjob_trainer.ahead.request import CompileRequest
from trainingjob_trainer.ending import exit_now
from trainingjob_trainer.events import EXIT_ORPHANED
from trainingjob_trainer.feeding.batches import BatchLoader
from trainingjob_trainer.modelling.mesh import build_mesh
from trainingjob_trainer.modelling.step import StepPrograms
from trainingjob_trainer.programs import SHARED_FOLDER, CompileCache
from trainingjob_trainer.remembering.recall import compile_broadcast
from trainingjob_trainer.replicas import compile_bit_sums
from trainingjob_trainer.world import ProcessGroup, configure

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.2
COMPILED, FAILED, OVER_MEMORY_LIMIT = 0, 1, 4


def main() -> NoReturn:
    """Compile the requested programs."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s", force=True)
    request = CompileRequest.model_validate_json(sys.stdin.buffer.readline())
    threading.Thread(
        target=_exit_with_parent_or_over_memory, args=(request.memory_bytes,), name="watch", daemon=True
    ).start()
    try:
        compile_ahead(request)
    except Exception:
        LOG.exception("cannot compile ahead")
        exit_now(FAILED)
    exit_now(COMPILED)


def compile_ahead(request: CompileRequest) -> None:
    """Write the requested programs to the shared folder."""
    config, spec = request.config, request.config.spec
    layout, root = config.layout(request.num_slices), Path(spec.checkpoint.uri)
    configure(config.accelerator_platform, layout)
    fake_topology(layout)
    programs = CompileCache(str(root / SHARED_FOLDER), root, config, layout, ProcessGroup(0, 1), request.program_secret)
    steps = StepPrograms(spec, build_mesh(jax.devices(), layout))
    batches = BatchLoader(layout, steps.batch_sharding, spec.training.global_batch_size)
    compilers: dict[str, Callable[[], object]] = {
        "train": lambda: steps.compile_train(programs, batches.shape),
        "evaluate": lambda: steps.compile_evaluate(programs, batches.shape),
        "spread": lambda: compile_broadcast(programs, steps.state_shapes),
        "replicas": lambda: compile_bit_sums(programs, steps.state_shapes),
    }
    for name in request.names:
        compilers[name]()


def _exit_with_parent_or_over_memory(memory_bytes: int) -> None:
    while not select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
        if (taken := resident_memory()) > memory_bytes:
            LOG.error("it takes %d bytes of memory, and %d are left for it", taken, memory_bytes)
            exit_now(OVER_MEMORY_LIMIT)
    exit_now(EXIT_ORPHANED)


if __name__ == "__main__":
    main()
