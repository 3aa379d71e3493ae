"""Write LoRA adapters of a committed checkpoint, with the results that `peft` computes from both.

The fixture in `tests/fixtures/peft/llama/` was written on a CPU with torch 2.15.0, transformers 5.24.0, peft 0.21.2.
Tests read it and need none of them. To write it again, install them in a separate environment:

    HF_HUB_DISABLE_PROGRESS_BARS=1 python tools/peft_fixture.py

It has the files of PEFT and, in `expected.npz`, `tokens` [B, L], `logits` [B, L, V], the mean next-token `loss`, and
the gradient of each tensor of the adapters as `gradient/NAME`. All numbers are float32. B is random instead of zero, so
that A has a gradient.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

FIXTURES = Path(__file__).parent.parent / "tests/fixtures"
NAME = "llama"
MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "down_proj"]


def write_fixture() -> None:
    """Write the files of the fixture."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(
        FIXTURES / "huggingface" / NAME, dtype=torch.float32, attn_implementation="eager"
    )
    model = get_peft_model(
        base, LoraConfig(r=2, lora_alpha=6, lora_dropout=0.0, target_modules=MODULES, task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    model.eval()
    with np.load(FIXTURES / "huggingface" / NAME / "expected.npz") as expected:
        tokens = torch.tensor(expected["tokens"].astype(np.int64))
    logits = model(tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    folder = FIXTURES / "peft" / NAME
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "README.md").unlink(missing_ok=True)
    config = json.loads((folder / "adapter_config.json").read_text())
    config |= {"base_model_name_or_path": None, "target_modules": sorted(config["target_modules"])}
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (folder / "adapter_model.safetensors").chmod(0o644)
    gradients = {
        f"gradient/{name.replace('.default', '')}": parameter.grad.numpy()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }
    arrays = {"tokens": tokens.numpy().astype(np.int32), "logits": logits.detach().numpy(), "loss": loss.item()}
    np.savez(folder / "expected.npz", **{key: np.asarray(value) for key, value in (arrays | gradients).items()})
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{NAME}: loss {loss.item():.4f}, {len(gradients)} gradients, {size:,} bytes")


if __name__ == "__main__":
    write_fixture()
