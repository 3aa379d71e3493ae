"""The ConfigMaps of a job's RunConfig: immutable, and named by their content.

A change of the content leads to another ConfigMap, with the next revision in its name. So the operator needs no right
to change ConfigMaps, and pods that start later read what their JobSet was created with. A ConfigMap whose content does
not match its name is not the operator's, even if it names the job as its owner.
"""

import hashlib
import json
from collections.abc import Iterable

from trainingjob_operator.core.manifests import Manifest, get_text, owner_uid
from trainingjob_operator.core.names import config_map

DATA_HASH = "dataHash"
"""Key of the data hash in a trimmed ConfigMap. The API server allows no such field."""


def hash_data(manifest: Manifest) -> str:
    """Return the hash of a ConfigMap's data, for a full or a trimmed manifest."""
    stored_hash = manifest.get(DATA_HASH)
    return str(stored_hash) if stored_hash else hash_text(json.dumps(manifest.get("data"), sort_keys=True))


def hash_text(content: str) -> str:
    """Return the SHA-256 hash of a text in hexadecimal digits. Lone surrogates are hashed as they are."""
    return hashlib.sha256(content.encode(errors="surrogatepass")).hexdigest()


def select_config_maps(config_maps: Iterable[Manifest], job: str, uid: str) -> tuple[Manifest, ...]:
    """Return the ConfigMaps that belong to a job and that match their names, the newest revision last."""
    owned = (manifest for manifest in config_maps if owner_uid(manifest) == uid)
    by_revision = {revision_of(manifest, job, uid): manifest for manifest in owned}
    return tuple(by_revision[revision] for revision in sorted(by_revision) if revision)


def revision_of(manifest: Manifest, job: str, uid: str) -> int:
    """Return the revision of a ConfigMap from 1 on. 0: its name is not that of this content for the job."""
    name = get_text(manifest, "metadata", "name")
    revision = name.rpartition("-")[0].rpartition("-")[2]
    if not revision.isascii() or not revision.isdigit():
        return 0
    return int(revision) if name == config_map(job, uid, int(revision), hash_data(manifest)) else 0
