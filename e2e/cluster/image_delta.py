"""The missing layers of an image on a node, as an archive that containerd imports.

A source change affects one small layer of a gigabyte. A full archive holds all layers, and importing each costs a node
seconds. Layers that the store already has are therefore left out.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


def write_delta(archive: Path, name: str, has_blob: Callable[[str], bool], target: Path) -> None:
    """Write a docker-archive's image as an OCI archive, without the layers for which `has_blob(hex digest)` is true.

    Layers of a docker-archive are not compressed, so their digests equal those in the image's config.
    """
    with tarfile.open(archive) as source, tarfile.open(target, "w") as delta:
        (entry,) = json.loads(_read(source, "manifest.json"))
        config = _read(source, entry["Config"])
        layers = []
        for diff_id, file in zip(json.loads(config)["rootfs"]["diff_ids"], entry["Layers"], strict=True):
            member = source.getmember(file)
            layers.append({"mediaType": LAYER, "digest": diff_id, "size": member.size})
            digest = diff_id.removeprefix("sha256:")
            if not has_blob(digest):
                member.name = f"blobs/sha256/{digest}"
                delta.addfile(member, source.extractfile(member))
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": _add_blob(delta, config, CONFIG),
            "layers": layers,
        }
        description = _add_blob(delta, _json(manifest), MANIFEST)
        index = {"schemaVersion": 2, "manifests": [{**description, "annotations": {"io.containerd.image.name": name}}]}
        _add(delta, "index.json", _json(index))
        _add(delta, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))


def _add_blob(delta: tarfile.TarFile, content: bytes, media_type: str) -> dict[str, Any]:
    """Add a blob and return its descriptor."""
    digest = hashlib.sha256(content).hexdigest()
    _add(delta, f"blobs/sha256/{digest}", content)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _add(delta: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    delta.addfile(member, io.BytesIO(content))


def _read(source: tarfile.TarFile, name: str) -> bytes:
    file = source.extractfile(name)
    assert file is not None, f"{name} is not a file"
    return file.read()


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()
