"""Chunks of the logits: how many a device computes one after the other, so that it never holds those of a microbatch.

Planner and trainer use the same rule, so that the plan describes the program.
"""

from trainingjob_api.spec.memory import Memory

FLOAT32 = 4
MAX_LOGITS_BYTES = 2**30
"""Float32 logits that a device holds at once if the spec does not choose. Each chunk reads and writes the gradient of
the LM head. With fewer tokens than about 2,000, that takes a large part of the time of the chunk's matmuls."""


def count_loss_chunks(memory: Memory, num_tokens: int, num_columns: int) -> int:
    """Return the number of chunks of a device's logits for a microbatch; 1: they are whole.

    `num_tokens` and `num_columns`: the tokens of the microbatch and the part of the vocabulary on the device.
    """
    if memory.loss_chunks:
        return min(memory.loss_chunks, num_tokens)
    return -(-FLOAT32 * num_tokens * num_columns // MAX_LOGITS_BYTES)
