"""The cluster's network: one switch, a machine that holds a bridge, and one cable from it to every other machine.

The bridge sits in a machine of its own rather than on the host: a host that runs a container engine filters bridged
traffic with rules of its own, and ours would stay behind after a crash. The host holds one end of a cable, no more.
"""

from collections.abc import Iterable

from e2e.cluster.commands import ClusterError, run
from e2e.cluster.machine import Machine
from e2e.cluster.topology import HOST_ADDRESS, SERVICE_RANGE, Node

BRIDGE = "bridge0"
HOST_DEVICE = "tj-host"
HOST_PORT = "port-host"

SWITCH = Machine("switch", setup=f"ip link add {BRIDGE} type bridge\nip link set {BRIDGE} up")


def port_name(octet: int) -> str:
    """Return the name of the switch port of the machine with this address."""
    return f"port-{octet}"


def plug_host(nodes: Iterable[Node]) -> None:
    """Connect the host itself, so that kubectl, curl and tests reach the API server, the nodes and the pods."""
    switch = SWITCH.init().pid
    run(["ip", "link", "add", HOST_DEVICE, "type", "veth", "peer", "name", HOST_PORT, "netns", str(switch)])
    SWITCH.run(["ip", "link", "set", HOST_PORT, "master", BRIDGE, "up"])
    run(["ip", "-batch", "-"], stdin=_address_batch(HOST_DEVICE, HOST_ADDRESS, nodes))


def plug(machine: Machine, octet: int, nodes: Iterable[Node]) -> None:
    """Connect a machine to the switch and give it its address and a route to every node's pods."""
    port = port_name(octet)
    unplug(octet)  # the port of a machine that just died may linger: the kernel takes namespaces down later
    cable = ["ip", "link", "add", "eth0", "netns", str(machine.init().pid), "type", "veth"]
    run([*cable, "peer", "name", port, "netns", str(SWITCH.init().pid)])
    SWITCH.run(["ip", "link", "set", port, "master", BRIDGE, "up"])
    others = [node for node in nodes if node.octet != octet]
    batch = _address_batch("eth0", f"10.200.0.{octet}", others)
    # Services are addresses without a machine: the kernel wants a route before kube-proxy's rules see the packet.
    machine.run(["ip", "-batch", "-"], stdin=f"{batch}route add {SERVICE_RANGE} dev eth0\n")


def unplug(octet: int) -> None:
    """Remove a machine's port from the switch; nothing if it has none."""
    try:
        SWITCH.run(["ip", "link", "delete", port_name(octet)])
    except ClusterError:
        return


def cut(octet: int) -> None:
    """Drop all that a machine sends and receives. Its link stays up, as when a switch beyond the next one fails."""
    SWITCH.run(["ip", "link", "set", port_name(octet), "nomaster"])


def heal(octet: int) -> None:
    """Undo `cut`."""
    SWITCH.run(["ip", "link", "set", port_name(octet), "master", BRIDGE])


def is_cut(octet: int) -> bool:
    """Return whether a machine's traffic is dropped."""
    return "master" not in SWITCH.run(["ip", "link", "show", port_name(octet)])


def _address_batch(device: str, address: str, others: Iterable[Node]) -> str:
    lines = [f"address add {address}/24 dev {device}", f"link set {device} up"]
    lines += [f"route add {node.pod_cidr} via {node.address}" for node in others]
    return "\n".join(lines) + "\n"
