"""Pin the base image of both Containerfiles by digest.

`python -m tools.pin_base` reads the digest of the base image's tag from its registry, and writes `NAME:TAG@DIGEST`
into the Containerfiles. The registry must be reachable without a login. The requests follow the distribution
specification of the Open Container Initiative, "Pulling manifests", and its token authentication.
"""

import json
import re
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from http.client import HTTPResponse
from pathlib import Path

from tools.images import BASE_ARGUMENT, ROOT, ImageError

CONTAINERFILES = ("operator/Containerfile", "trainer/Containerfile")
ACCEPTED = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json"
"""Indices: their digest names the image of each processor architecture."""
HOSTS = {"docker.io": "registry-1.docker.io"}
"""Hosts that serve the images of another name."""
LOOPBACK = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
TIMEOUT_SECONDS = 30


def resolve(reference: str) -> str:
    """Return the digest of a reference `host/repository:tag`.

    Raises:
        ImageError: the registry is unreachable, or does not have the image for anonymous clients.
    """
    host, _, path = reference.partition("/")
    repository, _, tag = path.rpartition(":")
    scheme = "http" if LOOPBACK.fullmatch(host) else "https"
    url = f"{scheme}://{HOSTS.get(host, host)}/v2/{repository}/manifests/{tag}"
    try:
        try:
            response = _get(url)
        except urllib.error.HTTPError as error:
            if error.code != 401:  # Unauthorized: a token is needed, also by anonymous clients
                raise
            response = _get(url, _request_token(error.headers.get("WWW-Authenticate", "")))
    except (OSError, KeyError, ValueError) as error:
        raise ImageError(
            f"{reference}: the registry {host} gave no digest: {error}. Check its name and try again."
        ) from error
    digest: str = response.headers.get("Docker-Content-Digest", "")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        raise ImageError(f"{reference}: the registry {host} answered with the digest {digest!r}. It must be sha256:...")
    return digest


def pin(text: str, find_digest: Callable[[str], str]) -> str:
    """Return a Containerfile whose base image has the digest of its tag, which `find_digest` returns."""
    return BASE_ARGUMENT.sub(lambda match: f"ARG PYTHON_IMAGE={_pin_reference(match[1], find_digest)}", text)


def main(root: Path = ROOT) -> int:
    """Pin the base images; return the exit code."""
    digests: dict[str, str] = {}

    def find_digest(reference: str) -> str:
        digests[reference] = digests.get(reference) or resolve(reference)
        return digests[reference]

    try:
        texts = {root / name: pin((root / name).read_text(), find_digest) for name in CONTAINERFILES}
    except ImageError as error:
        print(error, file=sys.stderr)
        return 1
    for path, text in texts.items():
        path.write_text(text)
    for reference, digest in digests.items():
        print(f"{reference} is {digest}")
    return 0


def _pin_reference(reference: str, find_digest: Callable[[str], str]) -> str:
    name = reference.partition("@")[0]
    return f"{name}@{find_digest(name)}"


def _get(url: str, token: str = "", method: str = "HEAD") -> HTTPResponse:
    headers = {"Accept": ACCEPTED, **({"Authorization": f"Bearer {token}"} if token else {})}
    request = urllib.request.Request(url, headers=headers, method=method)  # noqa: S310  # http or https, see `resolve`
    response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)  # noqa: S310
    return response


def _request_token(challenge: str) -> str:
    """Return an anonymous token for a challenge such as `Bearer realm="URL",service="NAME",scope="SCOPE"`."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    query = urllib.parse.urlencode({name: fields[name] for name in ("service", "scope") if name in fields})
    with _get(f"{fields['realm']}?{query}", method="GET") as response:
        content = json.load(response)
    return str(content.get("token") or content["access_token"])


if __name__ == "__main__":
    sys.exit(main())
