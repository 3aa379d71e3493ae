"""Errors of the runtime with their original messages, and the component that causes each."""

import pytest
from jax.errors import JaxRuntimeError

from tests.trainer.agent.test_heartbeat_errors import pair
from trainingjob_api.protocol import FailureReason
from trainingjob_trainer.runtime.failure_records import failure_record

NCCL = "INTERNAL: NCCL operation {} failed: {}. Last NCCL warning(error) log entry (may be unrelated) '{}'"
HALT = (
    "INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely, perhaps due to an on-device "
    "check-failure. Node 0 halted unexpectedly at tag:pc TensorCoreSequencer:1:0x175"
)
NO_CUDA = "Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices."
NO_TPU = "Unable to initialize backend 'tpu': INTERNAL: TPU initialization failed: TPU_RET_CHECK failure"
NO_TOPOLOGY = (
    "Unable to initialize backend '{0}': INTERNAL: Getting local topologies failed: Error 1: GetKeyValue() timed out "
    "with key: {0}:local_topology/{0}/1 and duration: 2m (set JAX_PLATFORMS='' to automatically choose an available "
    "backend)"
)
GLOO = "UNKNOWN: Gloo all-reduce failed: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:10146"
IB = "NET/IB : mlx5_3:1 Got async event : port error"
SAID: dict[str, tuple[Exception, FailureReason]] = {
    "memory of a GPU that is broken": (
        JaxRuntimeError("INTERNAL: CUDA error: Failed: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error"),
        FailureReason.ACCELERATOR,
    ),
    "an NVLink that is": (
        JaxRuntimeError("INTERNAL: CUDA_ERROR_NVLINK_UNCORRECTABLE: uncorrectable NVLink error detected"),
        FailureReason.ACCELERATOR,
    ),
    "a GPU that is gone": (RuntimeError(NO_CUDA), FailureReason.ACCELERATOR),
    "switches that are not up yet": (
        RuntimeError("failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized"),
        FailureReason.ACCELERATOR,
    ),
    "a device's error inside of a collective": (
        JaxRuntimeError(NCCL.format("ncclGroupEnd()", "unhandled cuda error", "Cuda failure 'unspecified'")),
        FailureReason.ACCELERATOR,
    ),
    "a core of a TPU that halts": (JaxRuntimeError(HALT), FailureReason.ACCELERATOR),
    "a TPU that does not start": (RuntimeError(NO_TPU), FailureReason.ACCELERATOR),
    "cores that halt because a host of the slice is gone": (
        JaxRuntimeError(
            f"{HALT}: scheckne: An unexpected peer shows up in the launch group with a different launch id"
        ),
        FailureReason.PEER,
    ),
    "what follows on the other hosts": (
        JaxRuntimeError("FAILED_PRECONDITION: The program continuator has halted unexpectedly."),
        FailureReason.PEER,
    ),
    "a port of the network card that is down": (
        JaxRuntimeError(NCCL.format("ncclGroupEnd()", "unhandled system error", IB)),
        FailureReason.NETWORK,
    ),
    "a host without a network": (
        JaxRuntimeError(NCCL.format("ncclCommInitRank", "internal error", "Bootstrap : no socket interface found")),
        FailureReason.NETWORK,
    ),
    "a connection that the other side closed": (
        JaxRuntimeError(
            NCCL.format("ncclGroupEnd()", "remote process exited or there was a network error", "Connection closed")
        ),
        FailureReason.PEER,
    ),
    "a transfer that nobody answered": (
        JaxRuntimeError(
            NCCL.format("ncclGroupEnd()", "unhandled system error", "NET/IB: Got completion from peer with error 12")
        ),
        FailureReason.PEER,
    ),
    "a peer that ended, seen by a program as it is called": (ValueError(GLOO), FailureReason.PEER),
    "a peer whose processors do not start": (RuntimeError(NO_TOPOLOGY.format("cpu")), FailureReason.PEER),
    "a peer whose GPUs do not start": (RuntimeError(NO_TOPOLOGY.format("cuda")), FailureReason.PEER),
    "no memory for a program as it is called": (
        ValueError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12 bytes."),
        FailureReason.OUT_OF_MEMORY,
    ),
    "no memory for the buffers of a collective": (
        JaxRuntimeError(NCCL.format("ncclCommInitRank", "unhandled cuda error", "Cuda failure 2 'out of memory'")),
        FailureReason.OUT_OF_MEMORY,
    ),
    "a barrier at which a peer did not arrive": (
        JaxRuntimeError(
            "DEADLINE_EXCEEDED: Barrier timed out. Id: added::0. This usually happens because a task exited"
        ),
        FailureReason.PEER,
    ),
    "a barrier of processes, in words alone": (
        JaxRuntimeError("ABORTED: Barrier failed: a task that takes part in the barrier has ended"),
        FailureReason.PEER,
    ),
    "a program with a barrier between operations, which XLA rejects": (
        JaxRuntimeError(
            "INTERNAL: RET_CHECK failure (xla/service/layout_assignment.cc:1) %opt-barrier.3 = (f32[2]{0}) "
            'opt-barrier(%tuple.2), metadata={op_name="jit(step)/optimization_barrier"}'
        ),
        FailureReason.CRASH,
    ),
    "an access out of bounds": (
        JaxRuntimeError("INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
        FailureReason.CRASH,
    ),
    "a program's own error that speaks of peers": (RuntimeError("the barrier `x` has no name"), FailureReason.CRASH),
    "a value that speaks of peers": (ValueError("gloo is no name"), FailureReason.CRASH),
    "a value that speaks of devices": (ValueError("no visible GPU devices"), FailureReason.CRASH),
}


@pytest.mark.parametrize(("error", "want"), SAID.values(), ids=SAID.keys())
def test_cause_of_an_error(error: Exception, want: FailureReason) -> None:
    failure = failure_record(error, step=7)

    assert (failure.reason, failure.fatal) == (want, False)
    assert str(error) in failure.message


LEFT_ALONE = """
import os, sys, time
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from trainingjob_trainer.runtime.failure_records import failure_record
address, number = sys.argv[1:]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, 2, int(number))
mesh = Mesh(np.array(jax.devices()), ("all",))
ones = jax.make_array_from_callback((2,), NamedSharding(mesh, PartitionSpec("all")), lambda index: np.ones(1))
add_up = jax.jit(lambda array: array.sum(), out_shardings=NamedSharding(mesh, PartitionSpec()))
add_up = add_up.lower(ones).compile()
add_up(ones).block_until_ready()
client = jax._src.distributed.global_state.client
client.wait_at_barrier("added", 60_000)
if number == "1":
    os._exit(0)
time.sleep(1)
try:
    for _ in range(100):
        add_up(ones).block_until_ready()
except Exception as error:
    print(f"ERROR {type(error).__name__} {failure_record(error, step=1).reason}", flush=True)
os._exit(0)
"""


@pytest.mark.thorough
def test_call_after_the_end_of_a_peer_reports_a_lost_peer() -> None:
    with pair(LEFT_ALONE) as processes:
        log, _ = processes[0].communicate(timeout=60)

    assert log.partition("ERROR ")[2].split() == ["ValueError", "Peer"], log
