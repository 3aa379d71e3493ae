"""Export every committed Hugging Face checkpoint: `python -m tests.support.trainer.export_fixtures FOLDER`.

`tools/huggingface_load.py FOLDER` then loads the exports with `transformers`. Each is written twice: from the model
alone (`fresh`), and with the small files of the source (`kept`).
"""

import sys
from pathlib import Path

from tests.support.trainer.huggingface import FOLDER, Fixture
from tests.support.trainer.training import spec_with
from trainingjob_trainer.huggingface.companion_files import keep_companions
from trainingjob_trainer.huggingface.export_weights import gather_from
from trainingjob_trainer.huggingface.model_export import ExportTarget, export_model
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.opening import open_store

MAX_FILE_BYTES = 20_000
"""Small enough for several files of each model."""


def export_fixtures(folder: Path) -> None:
    """Write all exports below a folder."""
    for source in sorted(FOLDER.iterdir()):
        fixture = Fixture(source.name)
        spec, own = spec_with().model_copy(update={"model": fixture.model}), open_store(folder / "jobs" / source.name)
        for kind in ("fresh", "kept"):
            if kind == "kept":
                keep_companions(fixture.weights.store, own)
            target = ExportTarget(open_store(folder / kind / source.name), "float32", MAX_FILE_BYTES)
            export_model(spec, gather_from(fixture.load()), own, target, ProcessGroup(0, 1))


if __name__ == "__main__":
    import tests.trainer.conftest  # noqa: F401  # eight devices

    export_fixtures(Path(sys.argv[1]))
