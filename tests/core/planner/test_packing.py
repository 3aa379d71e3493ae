"""Isolated documents in the plan: they rule out kernels that cannot separate documents."""

import pytest

from e2e.benchmarks.compiler_cases import DEEP, job, training
from trainingjob_operator.core.planner.planning import plan_job


@pytest.mark.parametrize(("packing", "want"), [(None, "cudnn"), ({"type": "bestFit"}, "chunked")])
def test_isolated_documents_need_a_kernel_that_separates_them(packing: dict[str, str] | None, want: str) -> None:
    data = {"train": [{"name": "text", "path": "/data/text"}], "packing": packing}
    spec = job("nvidia-h100", "8", {"fsdp": -1}, model=DEEP, training=training(8, 4096, 1), data=data)

    kernels = plan_job(spec).kernels

    assert [kernel.name for kernel in kernels] == [want]
