"""Write tiny random checkpoints of each model family, with the results that `transformers` computes from them.

The fixtures in `tests/fixtures/huggingface/FAMILY/` were written on a CPU with torch 2.15.0 and transformers 5.24.0.
Tests read them and need neither library. To write them again, install both in a separate environment:

    HF_HUB_DISABLE_PROGRESS_BARS=1 python tools/huggingface_fixtures.py [FAMILY ...]

A fixture has the names and the layout of files on the hub: `config.json`, `model.safetensors` and, in `expected.npz`,
`tokens` [B, L], `logits` [B, L, V], the mean next-token `loss`, and the gradients of the loss for some tensors as
`gradient/NAME`, each in the layout of the file's tensor of that name. All numbers are float32.

All weights are random: norms, biases, sinks and routing biases differ from their initial values, so that each of them
changes the logits. Sequences are longer than windows, chunks and the original lengths of rotary scaling.
"""

import re
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

FOLDER = Path(__file__).parent.parent / "tests/fixtures/huggingface"
MAX_BYTES = 100_000
SEQUENCES, LENGTH = 2, 40
VOCAB, WIDTH, HIDDEN = 64, 16, 24

SIZES = {"vocab_size": VOCAB, "hidden_size": WIDTH, "num_hidden_layers": 2, "max_position_embeddings": 64}
IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None}
"""No padding: no gradient would reach the embedding of its id."""
COMMON = SIZES | IDS | {"intermediate_size": HIDDEN, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
LLAMA = COMMON | {"rms_norm_eps": 1e-5}
LATENT = (
    SIZES
    | IDS
    | {"intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 3}
    | {"kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 6, "first_k_dense_replace": 1}
    | {"n_routed_experts": 6, "n_shared_experts": 1, "num_experts_per_tok": 3, "moe_intermediate_size": 4}
)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def yarn(**options: Any) -> dict[str, Any]:
    """Return the rotary positions of a model whose context grew with YaRN."""
    sizes = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 8.0, "beta_slow": 0.5}
    return {"rope_type": "yarn", "rope_theta": 1000.0} | sizes | options


CONFIGS: dict[str, dict[str, Any]] = {
    "gpt2": IDS | {"vocab_size": VOCAB, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 48, "n_inner": 32},
    "llama": LLAMA,
    "llama_tied": LLAMA | {"tie_word_embeddings": True, "num_hidden_layers": 3},
    "llama_rope_scaling": LLAMA | {"rope_parameters": LLAMA3_ROPE},
    "mistral": LLAMA | {"sliding_window": 12},
    "mixtral": LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 12},
    "qwen2": LLAMA | {"num_hidden_layers": 3},
    "qwen3": LLAMA | {"num_hidden_layers": 3},
    "qwen3_moe": LLAMA
    | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "norm_topk_prob": True},
    "gemma": COMMON | {"num_key_value_heads": 1},
    "gemma2": COMMON
    | {"num_hidden_layers": 3, "sliding_window": 12, "query_pre_attn_scalar": 16}
    | {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "gemma3_text": COMMON
    | {"num_hidden_layers": 4, "sliding_window": 12, "query_pre_attn_scalar": 16, "num_key_value_heads": 1}
    | {"layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]}
    | {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 8.0},
        }
    },
    "olmo3": LLAMA
    | {"num_hidden_layers": 4, "sliding_window": 12, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            "full_attention": yarn(attention_factor=1.2),
        }
    },
    "deepseek_v2_lite": LATENT | {"q_lora_rank": None, "rope_parameters": yarn(mscale=0.707, mscale_all_dim=0.707)},
    "deepseek_v2": LATENT
    | {"q_lora_rank": 12, "topk_method": "group_limited_greedy", "n_group": 3, "topk_group": 2}
    | {"routed_scaling_factor": 4.0, "n_shared_experts": 2},
    "deepseek_v3": LATENT
    | {"q_lora_rank": 12, "n_group": 3, "topk_group": 2, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0}
    | {"rope_parameters": yarn(mscale=1.0, mscale_all_dim=1.0)},
    "gpt_oss": COMMON
    | {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 12, "intermediate_size": 12}
    | {"swiglu_limit": 1.0, "rope_parameters": yarn(truncate=False)},
    "llama4_text": LLAMA
    | {"num_hidden_layers": 4, "intermediate_size": 8, "intermediate_size_mlp": 16, "num_local_experts": 4}
    | {"num_attention_heads": 2, "num_key_value_heads": 1}
    | {"interleave_moe_layer_step": 2, "attention_chunk_size": 16, "floor_scale": 8, "attn_scale": 0.5}
    | {"rope_parameters": LLAMA3_ROPE},
}
"""Options of each fixture, beside the defaults of its configuration class. A name begins with a model type."""
MODEL_TYPES = {"llama_tied": "llama", "llama_rope_scaling": "llama", "deepseek_v2_lite": "deepseek_v2"}


def write_fixture(name: str) -> None:
    """Write the files of one fixture."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(MODEL_TYPES.get(name, name), **CONFIGS[name])
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    randomize(model)
    model.eval()
    tokens = torch.randint(VOCAB, (SEQUENCES, LENGTH))
    logits = model(tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    expected = {"tokens": tokens.numpy().astype(np.int32), "logits": logits.detach().numpy(), "loss": loss.item()}
    folder = FOLDER / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    gradients = {f"gradient/{name}": array for name, array in choose(export_gradients(model)).items()}
    np.savez(folder / "expected.npz", **{key: np.asarray(value) for key, value in (expected | gradients).items()})
    size = sum(path.stat().st_size for path in folder.iterdir())
    if size > MAX_BYTES:
        raise SystemExit(f"{name} has {size:,} bytes, more than {MAX_BYTES:,}")
    print(f"{name}: loss {loss.item():.4f}, largest logit {logits.abs().max():.2f}, {size:,} bytes")


def randomize(model: PreTrainedModel) -> None:
    """Give each parameter values that matter: matrices scaled to their input, vectors around their initial value."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
            elif name.endswith("_bias"):
                parameter.copy_(0.3 * torch.randn_like(parameter))
            elif "embed" in name or "wte" in name or "wpe" in name:
                parameter.copy_(0.7 * torch.randn_like(parameter))
            else:
                parameter.copy_(1.5 * WIDTH**-0.5 * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(0.1 * torch.randn_like(buffer))


def export_gradients(model: PreTrainedModel) -> dict[str, np.ndarray]:
    """Return the gradients in the layout of the files: each parameter's gradient is saved in its place."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return {name: tensor.numpy() for name, tensor in load_file(Path(folder) / "model.safetensors").items()}


def choose(gradients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the gradients of the first tensor of each kind, whose names differ only by numbers."""
    chosen: dict[str, str] = {}
    for name in sorted(gradients):
        if "correction_bias" not in name:  # no gradient reaches it
            chosen.setdefault(re.sub(r"\d+", "N", name), name)
    return {name: gradients[name] for name in chosen.values()}


if __name__ == "__main__":
    for family in sys.argv[1:] or CONFIGS:
        write_fixture(family)
