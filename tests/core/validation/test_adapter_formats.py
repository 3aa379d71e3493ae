"""The formats of exported adapters: PEFT where each adapter has a place in the files."""

from tests.support.builders import spec_manifest
from trainingjob_operator.core.validation.validate import validate_job


def test_adapters_of_matrices_with_files_of_their_own_are_exported_for_peft() -> None:
    spec = spec_manifest(
        lora={"rank": 4, "alpha": 8, "targets": ["*.attention.query"]},
        checkpoint={"uri": "/shared/run", "initializeFrom": {"uri": "/shared/base"}}
        | {"export": {"huggingFace": {"uri": "/shared/exported", "adapter": "peft"}}},
    )

    assert [problem.path for problem in validate_job("demo", spec).problems if "adapter" in problem.path] == []
