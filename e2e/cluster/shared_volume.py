"""Shared checkpoint storage: a ReadWriteMany volume over a folder that every node can access. Pure."""

from pathlib import Path
from typing import Any

TRAINER_UID = 65532
CAPACITY = "10Gi"


def shared_volume(namespace: str, claim: str, folder: Path) -> list[dict[str, Any]]:
    """Return the PersistentVolume, and the claim that binds only to it.

    The folder must exist on every node and be writable by TRAINER_UID: the kubelet neither creates it nor changes its
    owner.
    """
    volume = f"{namespace}-{claim}"
    size = {"storage": CAPACITY}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "capacity": size,
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
                "claimRef": {"namespace": namespace, "name": claim},
                "hostPath": {"path": str(folder), "type": "Directory"},
            },
        },
        shared_claim(namespace, claim, {"storageClassName": "", "volumeName": volume}),
    ]


def shared_claim(namespace: str, claim: str, choice: dict[str, Any]) -> dict[str, Any]:
    """Return a ReadWriteMany claim; `choice` selects the volume or storage class."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": claim, "namespace": namespace},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": CAPACITY}}, **choice},
    }
