"""The kernel that computes attention. Planner and trainer choose it by the same function."""

from dataclasses import dataclass
from typing import Literal

from trainingjob_api.network.attention_blocks import BlockLimits, CausalScope
from trainingjob_api.token_order import Exchange

CPU, TPU, NVIDIA = "cpu", "tpu-", "nvidia-"
"""Accelerators of the hardware table by their names, or by what these begin with."""
MIN_CHUNKED_LENGTH_CPU = 256
"""Tokens of a sequence from which the chunked kernel is faster on a CPU, as measured from 128 to 4,096 tokens."""
MIN_CHUNKED_LENGTH = 4096
"""Tokens of a sequence from which other accelerators save the memory of the scores: 64 MiB per head in float32."""
MIN_CUDNN_LENGTH = 512
FROM_HOPPER = ("nvidia-h", "nvidia-gh", "nvidia-b", "nvidia-gb")
"""What the names of GPUs begin with whose cuDNN kernels have wide heads. JAX rejects wide heads on others, so that a
GPU that an administrator adds must not count as one of them by default."""
UNKNOWN_KIND = f"the name of the accelerator begins with neither `{NVIDIA}` nor `{TPU}`"
"""Why an accelerator that an administrator adds has only the kernels that run everywhere."""
LANES = 128
"""Elements of a row of a TPU's registers."""
SPLASH_BLOCKS = BlockLimits(smallest=LANES, largest=512, multiple=LANES)
"""Blocks of splash attention: whole rows of registers, and what fits into the memory of a core in all kernels."""
BFLOAT16_BYTES = 2

type KernelName = Literal["plain", "chunked", "cudnn", "splash", "ring"]
type ExpertKernelName = Literal["one_hot", "ragged_dot"]


@dataclass(frozen=True)
class KernelChoice[Name: str]:
    """The kernel of a part of the layers, and the reason for it."""

    part: str
    name: Name
    reason: str
    """A clause after "because"."""


@dataclass(frozen=True)
class AttentionCase:
    """What decides which kernels can compute attention."""

    accelerator: str
    length: int
    """Tokens of a whole sequence."""
    context: int
    """Shards of a sequence."""
    compute_bytes: int
    """Bytes of a value in the compute format."""
    key_width: int
    value_width: int
    scope: CausalScope = CausalScope()  # noqa: RUF009  # it is immutable
    has_soft_cap: bool = False
    has_sinks: bool = False
    has_documents: bool = False
    """Whether a sequence holds several documents."""
    exchange: Exchange = "gather"


def choose_attention(case: AttentionCase) -> KernelChoice[KernelName]:
    """Return the attention kernel."""
    if case.exchange == "ring" and case.context > 1:
        return _choose(
            "ring", f"{case.context} devices pass keys on, so that none holds those of {case.length:,} tokens"
        )
    if case.accelerator.startswith(NVIDIA) and case.length >= MIN_CUDNN_LENGTH:
        obstacle = _find_cudnn_obstacle(case)
        return _choose_portable(case, obstacle) if obstacle else _choose("cudnn", "cuDNN stores no scores")
    if case.accelerator.startswith(TPU) and case.length >= MIN_CHUNKED_LENGTH:
        obstacle = _find_splash_obstacle(case)
        return _choose_portable(case, obstacle) if obstacle else _choose("splash", "splash attention stores no scores")
    is_named = not case.accelerator or case.accelerator == CPU or case.accelerator.startswith((TPU, NVIDIA))
    return _choose_portable(case, "" if is_named else UNKNOWN_KIND)


def _choose_portable(case: AttentionCase, obstacle: str = "") -> KernelChoice[KernelName]:
    """Return a kernel that runs everywhere. `obstacle` is why the accelerator's own kernel does not."""
    min_length = MIN_CHUNKED_LENGTH_CPU if case.accelerator == CPU else MIN_CHUNKED_LENGTH
    beside = f", and {obstacle}" if obstacle else ""
    if case.length < min_length:
        return _choose("plain", f"sequences of {case.length:,} tokens are shorter than {min_length:,}{beside}")
    return _choose("chunked", f"the memory of all scores grows with the square of {case.length:,} tokens{beside}")


def _choose(name: KernelName, reason: str) -> KernelChoice[KernelName]:
    return KernelChoice("attention", name, reason)


def _find_cudnn_obstacle(case: AttentionCase) -> str:
    """Return why cuDNN cannot compute attention. Empty: it can."""
    widest = 256 if case.accelerator.startswith(FROM_HOPPER) else 128
    obstacles = {
        "cuDNN computes in bfloat16 only": case.compute_bytes != BFLOAT16_BYTES,
        "cuDNN has no soft cap": case.has_soft_cap,
        "cuDNN has no sinks": case.has_sinks,
        "cuDNN has no chunks": case.scope.chunk is not None,
        "cuDNN does not separate documents": case.has_documents,
        "cuDNN does not shard queries over `context`": case.context > 1,
        f"cuDNN needs a head width that is at most {widest} and a multiple of 8": case.key_width > widest
        or case.key_width % 8 != 0
        or case.value_width % 8 != 0,
        # `jax.nn.dot_product_attention` rejects other values before cuDNN sees them, on all GPUs.
        "cuDNN needs values as wide as keys": case.key_width != case.value_width,
    }
    return next((obstacle for obstacle, applies in obstacles.items() if applies), "")


def _find_splash_obstacle(case: AttentionCase) -> str:
    """Return why splash attention cannot compute attention. Empty: it can."""
    obstacles = {
        "splash attention has no chunks with a window": bool(case.scope.chunk and case.scope.window),
        f"splash attention needs shards of a multiple of {LANES} tokens": case.length % (LANES * case.context) != 0,
    }
    return next((obstacle for obstacle, applies in obstacles.items() if applies), "")
