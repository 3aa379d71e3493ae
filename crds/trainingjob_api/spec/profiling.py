"""The profiling section."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Unit

TraceSteps = Annotated[int, Field(ge=1, le=100)]
"""Steps of one trace. More fill the memory of the host."""
TracedHosts = Literal["first", "all"]
HloFormat = Literal["text", "proto", "both"]


class Profiling(Strict):
    """Traces of optimizer steps for XProf, TensorBoard and Perfetto, below `checkpoint.uri`/profiles."""

    start_step: Annotated[int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(10)] = Field(
        default=10, description="First step of the first trace. A world that resumes after it traces what is left."
    )
    num_steps: Annotated[TraceSteps, Unit("optimizer steps"), Example(3)] = Field(
        default=3, description="Steps of each trace."
    )
    every_steps: Annotated[
        Annotated[int, Field(ge=2, le=100_000_000)] | None, Unit("optimizer steps"), Example(1000)
    ] = Field(default=None, description="Steps between the starts of two traces. Unset: one trace.")
    hosts: Annotated[TracedHosts, Example("first")] = Field(
        default="first", description="Traced hosts: the first host of the world, or all hosts."
    )
    hlo: Annotated[HloFormat | None, Example("text")] = Field(
        default=None,
        description="Format in which process 0 writes the HLO of each compiled program, below "
        "`checkpoint.uri`/profiles/hlo. Unset: no HLO is written.",
        exclude_if=lambda hlo: hlo is None,  # an agent before 0.1 refuses a field that it does not know
    )

    def find_last_step(self, step: int) -> int | None:  # None: the step is not traced
        """Return the last step of the trace to which a step belongs."""
        offset = step - self.start_step
        if self.every_steps and offset >= 0:
            offset %= self.every_steps
        return step - offset + self.num_steps - 1 if 0 <= offset < self.num_steps else None
