"""Mock topology: a world of many processes as its process 0 sees it, in a single process.

Programs are compiled for all devices of a world, and the devices of other processes are known only after joining. This
process therefore runs the coordination service itself, joins under every process number, and shows JAX what process 0
would see. Nothing can run on such devices. What is compiled for them equals the world's programs byte for byte.

It uses private parts of JAX, which is pinned. If they change, worlds compile for themselves.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import jax
from jax._src import distributed
from jaxlib import _jax, xla_client

from trainingjob_api.world import Layout

TIMEOUT_SECONDS = 24 * 3600
"""Timeout between the parts of this process, which runs only when no other process needs the CPU."""

_other_clients: list[object] = []
"""The other processes' clients. A client that is deleted leaves the world, and JAX then ends all processes in it."""


def fake_topology(layout: Layout) -> None:
    """Make JAX see the CPU devices of a layout, those of process 0 as local. Call it after `configure`."""
    if layout.num_hosts == 1:
        return
    jax.config.update("jax_cpu_get_local_topology_timeout_minutes", TIMEOUT_SECONDS // 60)
    jax.config.update("jax_cpu_get_global_topology_timeout_minutes", TIMEOUT_SECONDS // 60 + 1)
    address = f"unix-abstract:trainingjob-ahead-{os.getpid()}"  # not reachable from outside of this pod
    state: distributed.State = distributed.global_state
    state.service = _jax.get_distributed_runtime_service(
        address, layout.num_hosts, heartbeat_timeout=TIMEOUT_SECONDS, shutdown_timeout=1, recoverable=False
    )
    clients = [
        _jax.get_distributed_runtime_client(
            address, process, init_timeout=TIMEOUT_SECONDS, use_compression=True, heartbeat_timeout=TIMEOUT_SECONDS
        )
        for process in range(layout.num_hosts)
    ]
    with ThreadPoolExecutor(layout.num_hosts) as pool:  # each client waits for all others
        list(pool.map(lambda client: client.connect(), clients))
        state.client, state.process_id, state.num_processes = clients[0], 0, layout.num_hosts
        others = [
            pool.submit(
                xla_client.make_cpu_client,
                distributed_client=client,
                node_id=process,
                num_nodes=layout.num_hosts,
                num_devices=layout.devices_per_host,
                get_local_topology_timeout_minutes=TIMEOUT_SECONDS // 60,
                get_global_topology_timeout_minutes=TIMEOUT_SECONDS // 60 + 1,
            )
            for process, client in enumerate(clients[1:], 1)
        ]
        jax.devices()
        _other_clients.extend((*clients, *(other.result() for other in others)))
