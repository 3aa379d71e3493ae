"""Weights in the format of Hugging Face in buckets: exported there, and read from there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.trainer.huggingface import Fixture
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from tests.support.trainer.training import spec_with
from trainingjob_trainer.huggingface.companion_files import keep_companions
from trainingjob_trainer.huggingface.export_weights import gather_from
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

MAX_FILE_BYTES = 20_000
"""Small enough for several files."""


@pytest.fixture(params=SCHEMES)
def root(request: pytest.FixtureRequest, object_servers: ObjectServers) -> Iterator[str]:
    with object_servers.environment(request.param):
        yield new_root(request.param)


def test_exported_weights_are_those_of_a_folder(root: str, tmp_path: Path) -> None:
    fixture, own = Fixture("llama"), open_store(f"{root}/run")
    spec = spec_with().model_copy(update={"model": fixture.model})
    keep_companions(fixture.weights.store, own)
    bucket, folder = open_store(f"{root}/exported"), open_store(tmp_path)
    bucket.write("model-00009-of-00009.safetensors", (b"of an earlier export",))

    for target in (bucket, folder):
        export_model(
            spec, gather_from(fixture.load()), own, ExportTarget(target, "float32", MAX_FILE_BYTES), ProcessGroup(0, 1)
        )

    names = folder.list_files("")
    assert {"config.json", "generation_config.json", "model.safetensors.index.json"} <= set(names)
    assert bucket.list_files("") == names
    for name in names:
        assert bucket.read(name, 1 << 20) == folder.read(name, 1 << 20), name
    assert sum(name.endswith(".safetensors") for name in names) > 1
