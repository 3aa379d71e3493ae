"""What the kubelet mounts into the webhook's pods of the operator's Secret."""

import base64
from pathlib import Path
from typing import Any

MOUNTED = {"webhook.crt": "tls.crt", "webhook.key": "tls.key", "ca.crt": "ca.crt"}
"""Files by their keys in the Secret, as in the chart."""


def mount_certificates(secret: dict[str, Any], folder: Path) -> None:
    """Write the files of a Secret into a folder."""
    for key, name in MOUNTED.items():
        (folder / name).write_bytes(base64.b64decode(secret["data"][key]))
