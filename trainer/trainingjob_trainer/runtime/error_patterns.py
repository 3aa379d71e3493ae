"""Runtime errors of JAX, XLA, NCCL, gloo and libtpu, classified by text because they have no exception types.

The reason decides which host is at fault. A failed device is a fault of its node, and the host there reports it. The
errors that a host sees when another host ends are no fault of this host. Nearly all connection errors of NCCL and gloo
are of that kind. They count as network errors only if they name this host's own link. An error that matches no row is a
crash: a program that XLA rejects, an access out of bounds.

The first matching row counts. NCCL wraps a device's error if a collective met it. libtpu reports the end of a peer as a
device error when it halts the cores of a slice. JAX reports a peer whose devices do not start as an error of this
host's backend.
"""

import re

from trainingjob_api.protocol import FailureReason

ERROR_PATTERNS: tuple[tuple[FailureReason, tuple[str, ...]], ...] = (
    (
        FailureReason.OUT_OF_MEMORY,
        (
            "resource_exhausted",  # XLA's allocator
            "cuda_error_out_of_memory",  # the driver, if XLA left too little memory to others
            "cuda failure.*out of memory",  # NCCL's buffers
        ),
    ),
    (
        FailureReason.PEER,
        (
            # libtpu halts all cores of a slice when one of its hosts runs another program or has stopped.
            "unexpected peer shows up in the launch group",
            "program continuator has halted unexpectedly",
            "slice health check failed",
            "getkeyvalue\\(\\) timed out",  # while the devices or NCCL start, all wait for what each of them publishes
        ),
    ),
    (
        FailureReason.ACCELERATOR,
        (
            "cuda_error_ecc_uncorrectable|uncorrectable ecc error",
            "cuda_error_nvlink_uncorrectable|uncorrectable nvlink error",
            "cuda_error_hardware_stack_error|hardware stack error",
            "cuda_error_contained",  # a failed access over NVLink that was contained
            "cuda_error_no_device|no cuda-capable device is detected|no visible gpu devices",
            "cuda_error_device_unavailable|cuda-capable device\\(s\\) is/are busy or unavailable",
            "cuda_error_system_not_ready|system not yet initialized",  # the fabric manager of the NVSwitches
            "nccl.*unhandled cuda error",  # NCCL's call to this host's driver
            "core halted unexpectedly",  # a check on a TPU's core failed
            "tpu initialization failed|failed to initialize tpu system",
            "unable to initialize backend '(cuda|tpu)'",
        ),
    ),
    (
        FailureReason.NETWORK,
        (
            "net/ib.*got async.* event.*(port error|fatal|catastrophic)",  # the card or its port
            "no socket interface found|network is unreachable",  # this host has no network
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
            "(?<!opt-)(?<!optimization_)barrier",  # not the operation of a program that XLA rejects
            "deadline_exceeded",
            "unavailable:",
            "preempt",
        ),
    ),
)
"""Regular expressions for the lower-case text of an error, by failure reason."""


def classify_error(text: str) -> FailureReason:
    """Return the failure reason of a runtime error; `Crash` if nothing matches."""
    small = text.lower()
    return next(
        (reason for reason, marks in ERROR_PATTERNS if any(re.search(mark, small) for mark in marks)),
        FailureReason.CRASH,
    )
