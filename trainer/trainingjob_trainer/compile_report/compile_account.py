"""One size of a job: compile its train step and read memory, arithmetic and traffic off it."""

import time
from pathlib import Path

from trainingjob_api.compile_report import CompiledStep
from trainingjob_api.world import Layout, RunConfig
from trainingjob_trainer.compile_report.mock_devices import find_devices
from trainingjob_trainer.data.loader import batch_shape
from trainingjob_trainer.hlo_analysis.collective_bytes import count_collectives
from trainingjob_trainer.hlo_analysis.flops import count_flops
from trainingjob_trainer.hlo_analysis.parser import HloProgram
from trainingjob_trainer.parallel.mesh import build_mesh
from trainingjob_trainer.runtime.compile_cache import CompileCache
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.step import StepPrograms


def compile_step(config: RunConfig, layout: Layout, dump: Path | None = None) -> CompiledStep:
    """Return what the train step of one size comes to; the program's text goes to the file `dump`.

    Raises:
        NoCompilerError: there is no compiler for the job's devices here.
    """
    mesh = build_mesh(find_devices(config, layout), layout)
    steps = StepPrograms(config.spec, mesh)
    programs = CompileCache("", "", config, layout, ProcessGroup(0, 1))
    start = time.monotonic()
    # What a built train step offers beyond being called is JAX's `Compiled`.
    compiled = steps.compile_train(programs, batch_shape(layout))
    seconds = time.monotonic() - start
    memory = compiled.memory_analysis()  # type: ignore[attr-defined]
    text = compiled.as_text()  # type: ignore[attr-defined]
    if dump:
        dump.write_text(text)
    program = HloProgram(text)
    return CompiledStep(
        num_slices=layout.num_slices,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        flops=count_flops(program, layout.ici.expert * layout.dcn.expert),
        collectives=count_collectives(program, layout),
        seconds=round(seconds, 1),
    )
