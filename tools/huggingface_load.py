"""Load exported models with `transformers`, and compare their logits with those of the committed checkpoints.

It needs torch and transformers, as `tools/huggingface_fixtures.py` does, and no package of this project. Write the
exports with the project's environment first:

    .venv/bin/python -m tests.support.trainer.export_fixtures FOLDER
    python tools/huggingface_load.py FOLDER
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

FIXTURES = Path(__file__).parent.parent / "tests/fixtures/huggingface"


def load_and_compare(folder: Path) -> str:
    """Return a line about an exported model: its class, what it lacks, and the largest difference of its logits."""
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    with np.load(FIXTURES / folder.name / "expected.npz") as expected:
        tokens, expected_logits = torch.tensor(expected["tokens"].astype(np.int64)), expected["logits"]
    with torch.no_grad():
        logits = model.eval()(tokens, use_cache=False).logits.numpy()
    files, missing, unexpected = (
        len(list(folder.glob("*.safetensors"))),
        len(report["missing_keys"]),
        len(report["unexpected_keys"]),
    )
    return (
        f"{folder.name:18} {type(model).__name__:21} files {files}, missing {missing}, unexpected {unexpected}, "
        f"largest difference {np.abs(logits - expected_logits).max():.1e}"
    )


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for kind in ("fresh", "kept"):
        print(f"{kind}:")
        for exported in sorted((Path(sys.argv[1]) / kind).iterdir()):
            print(load_and_compare(exported))
