"""Llama 4: experts, chunks of a sequence, and layers without positions. The presets have the decoder of text."""

from typing import Any

from trainingjob_api.huggingface.config_fields import Section
from trainingjob_api.presets.preset import Preset, dims, drop_no_tokens, hub

GLOBAL: Section = {"attention": "full", "positions": "none"}


def _decoder(rope: Section, pattern: list[Section], num_experts: int, **attention: Any) -> Section:
    """Return the model section of Llama 4."""
    experts = {"count": num_experts, "perToken": 1, "mlpDim": 8192, "shared": 1}
    options = {"scoring": "sigmoid", "weighting": "input", "balance": {"lossWeight": 0.001}}
    size = dims(vocab=202048, layers=48, embed=5120, mlp=16384, heads=40, kv_heads=8, head=128)
    return {
        **size,
        "attention": {"chunk": 8192, "temperatureTuning": {"length": 8192, "scale": 0.1}, **attention},
        "rope": {"theta": 500000.0, "interleaved": True, **rope},
        "layers": {"pattern": pattern},
        "experts": drop_no_tokens(experts | options),
    }


SCALING: Section = {"scaling": {"type": "llama3", "factor": 8.0, "originalLength": 8192}}
LONG_SCALING: Section = {
    "scaling": {
        "type": "llama3",
        "factor": 16.0,
        "originalLength": 8192,
        "llama3": {"lowFrequency": 1.0, "highFrequency": 1.0},
    }
}
SCOUT: list[Section] = [{"count": 3}, GLOBAL]
NOTE_16E = "The hub counts 108,641,793,536: a vision tower and its projector have 871,932,416."
DENSE: Section = {"feedForward": "dense"}

PRESETS = (
    Preset(
        name="llama4-17b-16e",
        source=hub("meta-llama/Llama-4-Scout-17B-16E"),
        parameters=107_769_861_120,
        context=262144,
        model=_decoder(SCALING, SCOUT, 16, queryKeyNorm="l2"),
        note=NOTE_16E,
    ),
    Preset(
        name="llama4-17b-16e-Instruct",
        source=hub("meta-llama/Llama-4-Scout-17B-16E-Instruct"),
        parameters=107_769_861_120,
        context=10485760,
        model=_decoder(LONG_SCALING, SCOUT, 16, queryKeyNorm="l2"),
        note=NOTE_16E,
    ),
    Preset(
        name="llama4-17b-128e",
        source=hub("meta-llama/Llama-4-Maverick-17B-128E"),
        parameters=400_711_848_960,
        context=1048576,
        model=_decoder({}, [DENSE, {}, DENSE, GLOBAL], 128),
        note="The hub counts 401,583,781,376: a vision tower and its projector have 871,932,416.",
    ),
)
