"""A free port for a coordinator, reserved until a child may need it."""

import socket


class ReservedPort:
    """A TCP port that no other process can bind while this object holds it.

    The socket is bound but does not listen, so connections are refused at once.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Release the port for a child."""
        self._socket.close()
