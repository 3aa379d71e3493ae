"""Compile programs of one size of a job, for a possible later world: a `CompileRequest` comes on standard input.

The process exits when its parent exits, which closes standard input, and before it exceeds its memory limit.
"""

import gc

if __name__ == "__main__":
    gc.disable()  # as in a trainer, whose start this process would delay

import logging
import select
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import jax

from trainingjob_trainer.aot.compile_request import CompileRequest
from trainingjob_trainer.aot.mock_topology import fake_topology
from trainingjob_trainer.context import TrainPrograms, train_program_names
from trainingjob_trainer.data.loader import batch_shape
from trainingjob_trainer.monitoring.evaluate_programs import list_evaluate_layouts
from trainingjob_trainer.monitoring.replica_check import compile_bit_sums
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.agent_events import EXIT_ORPHANED
from trainingjob_trainer.runtime.available_memory import resident_memory
from trainingjob_trainer.runtime.compile_cache import SHARED_FOLDER, CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup, configure
from trainingjob_trainer.runtime.process_output import exit_now
from trainingjob_trainer.sampling.token_programs import PROGRAM_NAMES, make_generator
from trainingjob_trainer.snapshots.snapshot_restore import compile_broadcast
from trainingjob_trainer.step import StepPrograms

LOG = logging.getLogger(__name__)
POLL_SECONDS = 0.2
COMPILED, FAILED, OVER_MEMORY_LIMIT = 0, 1, 4


def main() -> NoReturn:
    """Compile the requested programs."""
    gc.freeze()
    gc.enable()
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
    layout, root = config.layout(request.num_slices), spec.checkpoint.uri
    configure(config.accelerator_platform, layout)
    fake_topology(layout)
    programs = CompileCache(f"{root}/{SHARED_FOLDER}", root, config, layout, ProcessGroup(0, 1), request.program_secret)
    mesh = build_mesh(jax.devices(), layout)
    steps = StepPrograms(spec, mesh)
    train = TrainPrograms(steps, programs, spec, layout)
    generator = make_generator(spec, steps.state_shapes.params, mesh)
    compilers: dict[str, Callable[[], object]] = {
        **{name: partial(train.compile, *key) for key, name in train_program_names(spec).items()},
        **{
            name: partial(steps.compile_evaluate, programs, batch_shape(evaluate_layout), name)
            for name, evaluate_layout in list_evaluate_layouts(spec, layout).items()
        },
        "average": lambda: steps.compile_average(programs),
        "spread": lambda: compile_broadcast(programs, steps.state_shapes),
        "replicas": lambda: compile_bit_sums(programs, steps.state_shapes),
    }
    if generator:
        compilers |= {name: partial(generator.compile_program, name, programs) for name in PROGRAM_NAMES}
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
