"""A port that is free for a coordinator, kept by holding it until a child may need it."""

import socket


class HeldPort:
    """A TCP port that the kernel gives to nobody else while it is held.

    It is bound and not listened on, so that whoever dials it is refused at once.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def release(self) -> None:
        """Let a child have it."""
        self._socket.close()
