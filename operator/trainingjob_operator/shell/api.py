"""JSON requests to the API server.

The client library refreshes the credentials. The operator does not use its typed models: they cost
memory and time, and the core works on plain manifests. Every failed request raises one of the errors in `interfaces`.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, Self

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException
from pydantic_core import from_json

from trainingjob_operator.core.manifests import get_text, iter_items
from trainingjob_operator.shell.api_errors import NotFoundError, map_error
from trainingjob_operator.shell.clock import ServerClock
from trainingjob_operator.shell.interfaces import (
    ClusterUnavailableError,
    ConflictError,
    ForbiddenError,
    Manifest,
    MissingKindError,
    UnreadableError,
)
from trainingjob_operator.shell.kinds import POD, Kind
from trainingjob_operator.shell.proxy import find_proxy

type RefreshCredentials = Callable[[Configuration], Awaitable[object]]
"""Refresh the credentials of a configuration. Raises `ClusterUnavailableError`."""
type Method = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

FIELD_MANAGER = "trainingjob-operator"
PAGE_SIZE = 500
FIRST_PAGE_SIZE = 16
PAGE_BYTES = 2 * 1024 * 1024
"""Target size of a list page. A single object may have a megabyte. A parsed page takes five times its size, and Python
returns little of that memory."""
REQUEST_TIMEOUT_SECONDS = 10.0
LIST_TIMEOUT_SECONDS = 30.0
NUM_CONNECTIONS = 20
UNREACHABLE = "unreachable"
"""Code of a request without a complete response, among the HTTP statuses of failed requests."""
APPLY = "application/apply-patch+yaml"  # JSON is YAML
ACCEPT = "application/json, */*;q=0.5"
"""The keys of the token issuer are JSON with another media type."""
JSON_PATCH = "application/json-patch+json"


@dataclass(frozen=True)
class Page:
    """One page of a list, and the `resourceVersion` of the whole list."""

    items: tuple[Manifest, ...]
    resource_version: int


class _ManifestClient(ApiClient):
    """Client whose bodies are manifests."""

    def sanitize_for_serialization(self, obj: Any) -> Any:
        """Return the object. The base class copies it, to convert typed models and dates."""
        return obj


class Api:
    """Client of the API server, shared by the whole process. `async with` closes its connections."""

    def __init__(
        self,
        configuration: Configuration,
        *,
        refresh_credentials: RefreshCredentials | None = None,  # None: the credentials do not expire
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
    ) -> None:
        self._refresh_credentials = refresh_credentials
        self._refresh_lock = asyncio.Lock()
        self._request_timeout_seconds = request_timeout_seconds
        configuration.connection_pool_maxsize = NUM_CONNECTIONS
        # With `trust_env`, aiohttp would look for proxies and a netrc file at each request, in a thread, and ignore
        # networks in NO_PROXY. The watches use this configuration, too.
        configuration.client_session_kwargs = {"trust_env": False}
        configuration.proxy = configuration.proxy or find_proxy(configuration.host)
        self.configuration = configuration
        self.clock = ServerClock()
        """The API server's wall clock."""
        self.on_error: Callable[[str], None] = lambda code: None
        """Called with the HTTP status of each failed request, or with `unreachable`."""
        self._client: ApiClient = _ManifestClient(configuration)
        self._client.user_agent = FIELD_MANAGER

    def with_separate_pool(self) -> "Api":
        """Return a client of the same API server with a separate connection pool."""
        api = Api(
            self.configuration,
            refresh_credentials=self._refresh_credentials,
            request_timeout_seconds=self._request_timeout_seconds,
        )
        api.on_error = self.on_error
        return api

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:  # None: not found
        """Read an object from the API server. Raises `ClusterUnavailableError`, `MissingKindError`."""
        try:
            manifest: Manifest = await self._read(kind.path(namespace, name))
        except NotFoundError:
            return None
        return manifest

    async def read_document(self, path: str) -> object:
        """Read a JSON document that is not an object of a kind.

        Raises `ClusterUnavailableError`, `MissingKindError`, `NotFoundError`.
        """
        return await self._read(path)

    async def group_versions(self, group: str) -> tuple[str, ...]:
        """Return the served versions of an API group. Empty: there is no such group.

        Raises `ClusterUnavailableError`.
        """
        api_group = await self._discover(f"/apis/{group}")
        return tuple(get_text(version, "version") for version in iter_items(api_group, "versions"))

    async def kind_versions(self, kind: Kind) -> tuple[str, ...]:
        """Return the versions in which a kind is served, whatever the version of `kind`.

        Raises `ClusterUnavailableError`.
        """
        group, _, _ = kind.api_version.partition("/")
        served = []
        for version in await self.group_versions(group):
            resource_list = await self._discover(f"/apis/{group}/{version}")
            if any(resource.get("name") == kind.plural for resource in iter_items(resource_list, "resources")):
                served.append(version)
        return tuple(served)

    async def _discover(self, path: str) -> Manifest:
        """Read a document of the discovery. Empty: there is none."""
        try:
            document: Manifest = await self._read(path)
        except (NotFoundError, MissingKindError):
            return {}
        return document

    async def list_pages(
        self, kind: Kind, namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> AsyncIterator[Page]:
        """List the objects of a namespace (empty: of the cluster), in pages of at most `PAGE_SIZE` objects.

        The first page is small. The size of the objects determines the size of the next pages.

        Raises `ClusterUnavailableError`, `MissingKindError`.
        """
        limit = FIRST_PAGE_SIZE
        query: dict[str, str] = {}
        query |= {"labelSelector": labels} if labels else {}
        query |= {"fieldSelector": fields} if fields else {}
        while True:
            query["limit"] = str(limit)
            try:
                text = await self._read_text(kind.path(namespace), query, seconds=LIST_TIMEOUT_SECONDS)
            except NotFoundError as error:  # a list always exists if its kind does
                raise MissingKindError(f"the API server does not serve {kind.plural}") from error
            body, num_bytes = _parse(f"GET {kind.path(namespace)}", text), len(text)
            del text  # free memory: a page may be large
            metadata = body.get("metadata") or {}
            limit = max(min(limit * PAGE_BYTES // max(num_bytes, 1), 8 * limit, PAGE_SIZE), 1)
            items = tuple({"apiVersion": kind.api_version, "kind": kind.name, **item} for item in body["items"] or ())
            del body
            yield Page(items, int(metadata.get("resourceVersion") or 0))
            del items
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    async def log_lines(self, namespace: str, pod: str, query: dict[str, str]) -> AsyncIterator[str]:
        """Yield the lines of a pod's log, oldest first; `query` holds API options such as `follow` and `tailLines`.

        Raises `NotFoundError` and all errors of `interfaces`.
        """
        path = POD.path(namespace, pod, "log")
        request_name = f"GET {path}"
        with _translate_errors(request_name):
            response = await self._open("GET", path, query, None, "application/json", None)
            async with response:
                if response.status >= 400:
                    raise map_error(request_name, response.status, await response.read(), "")
                async for line in response.content:
                    yield line.decode(errors="replace").rstrip("\n")

    async def create(self, kind: Kind, manifest: Manifest, namespace: str = "", *, dry_run: bool = False) -> Manifest:
        """Create an object and return it. A dry run only admits it. Raises all errors of `interfaces`.

        `ConflictError`: the object exists.
        """
        query = {"fieldManager": FIELD_MANAGER} | ({"dryRun": "All"} if dry_run else {})
        return await self._write("POST", kind.path(namespace), query, manifest)

    async def apply(self, kind: Kind, manifest: Manifest) -> Manifest:
        """Server-side apply an object with `force`, which takes ownership of its fields, and return it."""
        metadata = manifest["metadata"]
        path = kind.path(metadata.get("namespace", ""), metadata["name"])
        return await self._write(
            "PATCH", path, {"fieldManager": FIELD_MANAGER, "force": "true"}, manifest, content_type=APPLY
        )

    async def replace(self, kind: Kind, manifest: Manifest, subresource: str = "") -> Manifest:
        """Replace an object or one of its subresources, and return the new object.

        Raises `ConflictError` if its `resourceVersion` differs from the manifest's, or if it was deleted.
        """
        metadata = manifest["metadata"]
        path = kind.path(metadata.get("namespace", ""), metadata["name"], subresource)
        try:
            return await self._write("PUT", path, {"fieldManager": FIELD_MANAGER}, manifest)
        except NotFoundError as error:
            raise ConflictError(f"{kind.name} '{metadata['name']}' no longer exists") from error

    async def patch(self, kind: Kind, namespace: str, name: str, operations: list[Manifest]) -> Manifest:
        """Apply a JSON patch to an object and return it. Raises `NotFoundError` and all errors of `interfaces`."""
        return await self._write("PATCH", kind.path(namespace, name), {}, operations, content_type=JSON_PATCH)

    async def delete(self, kind: Kind, manifest: Manifest, *, grace_seconds: int | None = None) -> Manifest | None:
        """Delete the object with this UID and, in the background, its dependents.

        Return the object if finalizers or its grace period keep it; None: it is gone.
        """
        metadata = manifest["metadata"]
        options: Manifest = {
            "propagationPolicy": "Background",
            "preconditions": {"uid": metadata["uid"]},
        }
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        try:
            remaining = await self._write(
                "DELETE", kind.path(metadata.get("namespace", ""), metadata["name"]), {}, options
            )
        except (NotFoundError, MissingKindError, ConflictError):
            return None  # a conflict means another UID: a new object has the name, and this one is gone
        return remaining if remaining.get("kind") == kind.name else None

    async def _read(self, path: str) -> Any:
        return _parse(f"GET {path}", await self._read_text(path, {}))

    async def _read_text(self, path: str, query: dict[str, str], *, seconds: float = 0.0) -> bytes:
        try:
            return await self._request("GET", path, query, seconds=seconds)
        except ForbiddenError as error:
            raise UnreadableError(str(error)) from error
        except ConflictError as error:  # an expired `continue` token restarts the list
            raise ClusterUnavailableError(str(error)) from error

    async def _write(
        self,
        method: Method,
        path: str,
        query: dict[str, str],
        body: object,
        *,
        content_type: str = "application/json",
    ) -> Manifest:
        written: Manifest = _parse(
            f"{method} {path}", await self._request(method, path, query, body, content_type=content_type)
        )
        return written

    async def _request(
        self,
        method: Method,
        path: str,
        query: dict[str, str],
        body: object = None,
        *,
        content_type: str = "application/json",
        seconds: float = 0.0,
    ) -> bytes:
        request_name = f"{method} {path}"
        try:
            with _translate_errors(request_name):
                response = await self._open(
                    method, path, query, body, content_type, seconds or self._request_timeout_seconds
                )
                text = await response.read()
        except ClusterUnavailableError:
            self.on_error(UNREACHABLE)
            raise
        if response.status >= 400:
            self.on_error(str(response.status))
            raise map_error(request_name, response.status, text, response.headers.get("Retry-After", ""))
        return text

    async def _open(
        self,
        method: Method,
        path: str,
        query: dict[str, str],
        body: object,
        content_type: str,
        seconds: float | None,  # None: no timeout
    ) -> aiohttp.ClientResponse:
        """Send a request and return the response, before its body is read.

        A request that fails with 401 had no effect. It is sent again if the refreshed credentials hold another token.
        """

        async def send() -> aiohttp.ClientResponse:
            verb, url, headers, payload, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list(query.items()),
                header_params={"Accept": ACCEPT, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            timeout = aiohttp.ClientTimeout(total=seconds, sock_connect=self._request_timeout_seconds)
            api_response = await self._client.call_api(verb, url, headers, payload, _request_timeout=timeout)
            sent: aiohttp.ClientResponse = api_response.response
            return sent

        response = await send()
        if response.status == 401:
            await response.read()  # releases the connection; the body stays readable
            if await self._refresh_token(response.request_info.headers.get("Authorization")):
                response = await send()
        self.clock.synchronize(response.headers.get("Date", ""))
        return response

    async def _refresh_token(self, rejected_token: str | None) -> bool:  # None: the request had no token
        """Refresh the token once for all rejected requests. Return whether the token changed."""
        async with self._refresh_lock:
            if self._refresh_credentials and await self._token() == rejected_token:
                await self._refresh_credentials(self.configuration)
            return await self._token() != rejected_token

    async def _token(self) -> str | None:
        return await self.configuration.get_api_key_with_prefix("BearerToken")


def _parse(request_name: str, text: bytes) -> Any:
    """Parse a JSON response body. Raises `ClusterUnavailableError`."""
    try:
        return from_json(text)
    except ValueError as error:
        raise ClusterUnavailableError(f"{request_name}: the response is not JSON") from error


@contextlib.contextmanager
def _translate_errors(request_name: str) -> Iterator[None]:
    """Convert connection errors into `ClusterUnavailableError`."""
    try:
        yield
    except aiohttp.ClientConnectorError as error:
        os_error = error.os_error
        reason = (
            os.strerror(os_error.errno) if isinstance(os_error, ConnectionError) and os_error.errno else str(os_error)
        )
        raise ClusterUnavailableError(
            f"{request_name}: cannot connect to {error.host}:{error.port}: {reason}"
        ) from error
    except (aiohttp.ClientError, TimeoutError, OSError, ConfigException) as error:
        raise ClusterUnavailableError(f"{request_name}: {type(error).__name__} {error}".rstrip()) from error
