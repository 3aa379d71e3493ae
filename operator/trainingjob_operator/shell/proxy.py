"""Proxy of the API server by the variables HTTPS_PROXY, HTTP_PROXY and NO_PROXY, with the rules of kubectl.

`urllib.request` ignores networks such as 10.96.0.0/12 in NO_PROXY, which clusters usually have there. The rules are
those of Go's `golang.org/x/net/http/httpproxy`.
"""

import contextlib
import ipaddress
import os
from collections.abc import Mapping
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}

type Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def find_proxy(url: str, environ: Mapping[str, str] = os.environ) -> str | None:  # None: connect directly
    """Return the URL of the proxy for requests to a server."""
    server = urlsplit(url)
    proxy = _read(environ, f"{server.scheme}_proxy")
    host, port = server.hostname or "", server.port or _DEFAULT_PORTS.get(server.scheme, 0)
    if not proxy or _is_excluded(host.rstrip("."), port, _read(environ, "no_proxy")):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _read(environ: Mapping[str, str], name: str) -> str:
    return (environ.get(name.upper()) or environ.get(name, "")).strip()


def _is_excluded(host: str, port: int, no_proxy: str) -> bool:
    address = _parse_address(host)
    if host == "localhost" or (address and address.is_loopback):
        return True
    entries = (entry.strip().lower() for entry in no_proxy.split(","))
    return any(_matches(entry, host, port, address) for entry in entries if entry)


def _matches(entry: str, host: str, port: int, address: Address | None) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
        return address is not None and address in network
    if _parse_address(entry):
        name = entry
    else:
        name, _, required_port = entry.rpartition(":") if ":" in entry else (entry, "", "")
        if required_port and required_port != str(port):
            return False
    name = name.strip("[]").removeprefix("*")
    if address or _parse_address(name):
        return address is not None and address == _parse_address(name)
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _parse_address(text: str) -> Address | None:  # None: it is a name
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(text)
    return None
