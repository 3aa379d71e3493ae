"""The cluster's network: a machine with a bridge as the switch, and a veth pair from it to every other machine.

The bridge is in its own machine, not on the host. A host with a container engine filters bridged traffic by its own
rules, and the rules of a crashed cluster would remain. The host holds only one end of a veth pair.
"""

from collections.abc import Iterable

from e2e.cluster.machine import Machine
from e2e.cluster.run_program import ClusterError, run
from e2e.cluster.topology import HOST_ADDRESS, SERVICE_RANGE, Node

BRIDGE = "bridge0"
HOST_DEVICE = "tj-host"
HOST_PORT = "port-host"

SWITCH = Machine("switch", setup=f"ip link add {BRIDGE} type bridge\nip link set {BRIDGE} up")


def port_name(octet: int) -> str:
    """Return the name of the switch port of the machine with this last octet."""
    return f"port-{octet}"


def connect_host(nodes: Iterable[Node]) -> None:
    """Connect the host, so that kubectl, curl and tests reach the API server, the nodes and the pods."""
    switch = SWITCH.init().pid
    run(["ip", "link", "add", HOST_DEVICE, "type", "veth", "peer", "name", HOST_PORT, "netns", str(switch)])
    SWITCH.run(["ip", "link", "set", HOST_PORT, "master", BRIDGE, "up"])
    run(["ip", "-batch", "-"], stdin=_address_batch(HOST_DEVICE, HOST_ADDRESS, nodes))


def connect_machine(machine: Machine, octet: int, nodes: Iterable[Node]) -> None:
    """Connect a machine to the switch; set its address and a route to every node's pods."""
    port = port_name(octet)
    disconnect_machine(
        octet
    )  # the port of a machine that just died may remain: the kernel removes namespaces with a delay
    cable = ["ip", "link", "add", "eth0", "netns", str(machine.init().pid), "type", "veth"]
    run([*cable, "peer", "name", port, "netns", str(SWITCH.init().pid)])
    SWITCH.run(["ip", "link", "set", port, "master", BRIDGE, "up"])
    others = [node for node in nodes if node.octet != octet]
    batch = _address_batch("eth0", f"10.200.0.{octet}", others)
    # Service addresses belong to no machine: without a route, packets never reach kube-proxy's rules.
    machine.run(["ip", "-batch", "-"], stdin=f"{batch}route add {SERVICE_RANGE} dev eth0\n")


def disconnect_machine(octet: int) -> None:
    """Remove a machine's port from the switch; do nothing if it has none."""
    try:
        SWITCH.run(["ip", "link", "delete", port_name(octet)])
    except ClusterError:
        return


def partition(octet: int) -> None:
    """Drop all packets of a machine. Its link stays up, as when a switch farther away fails."""
    SWITCH.run(["ip", "link", "set", port_name(octet), "nomaster"])


def heal(octet: int) -> None:
    """Undo `partition`."""
    SWITCH.run(["ip", "link", "set", port_name(octet), "master", BRIDGE])


def is_partitioned(octet: int) -> bool:
    """Return whether a machine's packets are dropped."""
    return "master" not in SWITCH.run(["ip", "link", "show", port_name(octet)])


def _address_batch(device: str, address: str, others: Iterable[Node]) -> str:
    lines = [f"address add {address}/24 dev {device}", f"link set {device} up"]
    lines += [f"route add {node.pod_cidr} via {node.address}" for node in others]
    return "\n".join(lines) + "\n"
