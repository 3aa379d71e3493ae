"""What JAX, XLA, NCCL, gloo and libtpu say when a world cannot go on: they have texts for it, and no types.

What decides is whose matter it is. A device that fails is its node's, and is told by that host. What a host sees of
another's end is nobody's here: nearly all that NCCL and gloo say of a connection comes of that, so it is held against
the network only where they name this host's own link. What is in no row is a crash: a program that XLA refuses, an
access out of bounds.

The first row that fits counts. A device's error comes wrapped in NCCL's where a collective met it, and a peer's end in
a device's where libtpu halts the cores of a slice.
"""

import re

from trainingjob_api.protocol import FailureReason

ROWS: tuple[tuple[FailureReason, tuple[str, ...]], ...] = (
    (
        FailureReason.OUT_OF_MEMORY,
        (
            "resource_exhausted",  # XLA's allocator
            "cuda_error_out_of_memory",  # the driver, where XLA left too little to others
            "cuda failure.*out of memory",  # NCCL's buffers
        ),
    ),
    (
        FailureReason.PEER,
        (
            # libtpu halts all cores of a slice when one host of it runs another program, or none any more.
            "unexpected peer shows up in the launch group",
            "program continuator has halted unexpectedly",
            "slice health check failed",
        ),
    ),
    (
        FailureReason.ACCELERATOR,
        (
            "cuda_error_ecc_uncorrectable|uncorrectable ecc error",
            "cuda_error_nvlink_uncorrectable|uncorrectable nvlink error",
            "cuda_error_hardware_stack_error|hardware stack error",
            "cuda_error_contained",  # a broken access over NVLink, stopped before it spread
            "cuda_error_no_device|no cuda-capable device is detected|no visible gpu devices",
            "cuda_error_device_unavailable|cuda-capable device\\(s\\) is/are busy or unavailable",
            "cuda_error_system_not_ready|system not yet initialized",  # the fabric manager of the NVSwitches
            "nccl.*unhandled cuda error",  # a call of NCCL to this host's driver
            "core halted unexpectedly",  # a check on a TPU's core failed
            "tpu initialization failed|failed to initialize tpu system",
            "unable to initialize backend '(cuda|tpu)'",
        ),
    ),
    (
        FailureReason.NETWORK,
        (
            "net/ib.*got async.* event.*(port error|fatal|catastrophic)",  # the card or its port
            "no socket interface found|network is unreachable",  # no way out of this host
        ),
    ),
    (
        FailureReason.PEER,
        (
            "nccl",
            "gloo",
            "megascale",  # libtpu between slices
            "connection (reset|closed|refused)",
            "socket closed",
            "coordination service",
            "heartbeat",
            "incarnation",
            "barrier",
            "deadline_exceeded",
            "unavailable:",
            "preempt",
        ),
    ),
)
"""Marks in the text of an error, small letters, by what they tell."""


def find_reason(text: str) -> FailureReason:
    """Return what an error of the runtime tells; `Crash` where it says nothing that is known."""
    small = text.lower()
    return next(
        (reason for reason, marks in ROWS if any(re.search(mark, small) for mark in marks)), FailureReason.CRASH
    )
