"""A world of many processes, as process 0 of it would see it, in one process that is alone.

Programs are compiled for all devices of a world, and a CPU's devices become known only by joining one. So this process
runs the coordination service itself, joins under every number, and lets JAX see what number 0 sees. Nothing can run on
such devices; what is compiled for them is, byte for byte, what the world compiles.

All of it stands on private parts of JAX, which is pinned. Where they change, worlds compile for themselves.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
from jax._src import distributed
from jaxlib import _jax, xla_client

from trainingjob_api.world import Layout

PATIENCE_SECONDS = 24 * 3600
"""How late the parts of this process may be to each other: it runs only where nothing else wants to."""

_others: list[object] = []
"""The other processes. Who goes away leaves the world, and JAX then ends all that are in it."""


def pretend(layout: Layout) -> None:
    """Let JAX see the CPU devices of a layout, those of process 0 as its own. To be called after `configure`."""
    if layout.num_hosts == 1:
        return
    jax.config.update("jax_cpu_get_local_topology_timeout_minutes", PATIENCE_SECONDS // 60)
    jax.config.update("jax_cpu_get_global_topology_timeout_minutes", PATIENCE_SECONDS // 60 + 1)
    address = f"unix-abstract:trainingjob-ahead-{os.getpid()}"  # nobody outside of this pod can reach it
    state: distributed.State = distributed.global_state
    state.service = _jax.get_distributed_runtime_service(
        address, layout.num_hosts, heartbeat_timeout=PATIENCE_SECONDS, shutdown_timeout=1, recoverable=False
    )
    clients = [
        _jax.get_distributed_runtime_client(
            address, process, init_timeout=PATIENCE_SECONDS, use_compression=True, heartbeat_timeout=PATIENCE_SECONDS
        )
        for process in range(layout.num_hosts)
    ]
    with ThreadPoolExecutor(layout.num_hosts) as together:  # each waits for all others
        list(together.map(lambda client: client.connect(), clients))
        state.client, state.process_id, state.num_processes = clients[0], 0, layout.num_hosts
        others = [
            together.submit(
                xla_client.make_cpu_client,
                distributed_client=client,
                node_id=process,
                num_nodes=layout.num_hosts,
                num_devices=layout.devices_per_host,
                get_local_topology_timeout_minutes=PATIENCE_SECONDS // 60,
                get_global_topology_timeout_minutes=PATIENCE_SECONDS // 60 + 1,
            )
            for process, client in enumerate(clients[1:], 1)
        ]
        jax.devices()
        _others.extend((*clients, *(other.result() for other in others)))
