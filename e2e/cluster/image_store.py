"""Images on the nodes: imported once into a seed store, from which every node starts.

A node needs about ten seconds to import the trainer's image. Therefore only the seed's containerd imports. A node
copies its two small databases, hard-links the blobs, and mounts the seed's unpacked layers read-only into its own
store. The seed changes only while no node runs; running nodes import for themselves.
"""

import json
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path

from e2e.cluster.binaries import binaries_dir
from e2e.cluster.image_delta import write_delta
from e2e.cluster.images import Image
from e2e.cluster.machine import Daemon, Machine
from e2e.cluster.node_config import CONTAINERD_SOCKET, NODE_ROOT
from e2e.cluster.paths import IMAGES, SEED
from e2e.cluster.run_program import ClusterError, run, wait_until

SNAPSHOTS = Path("io.containerd.snapshotter.v1.overlayfs/snapshots")
CONTENT = Path("io.containerd.content.v1.content")
INDEX = "images.json"

SEED_MACHINE = Machine("seed", setup=f"mkdir -p {NODE_ROOT}\nmount --bind {shlex.quote(str(SEED))} {NODE_ROOT}")

SEED_CONFIG = f"""\
version = 3
root = "{NODE_ROOT}/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]

[grpc]
address = "{CONTAINERD_SOCKET}"
"""


def ensure_seed(images: list[Image]) -> None:
    """Update the seed to these images. No node may run, because layers of replaced images are removed."""
    if _has_all(SEED, images):
        return
    SEED_MACHINE.kill()
    SEED.mkdir(parents=True, exist_ok=True)
    (SEED / "containerd.toml").write_text(SEED_CONFIG)
    SEED_MACHINE.boot()
    try:
        command: list[str | Path] = [binaries_dir() / "containerd", "--config", f"{NODE_ROOT}/containerd.toml"]
        SEED_MACHINE.start(Daemon("containerd", command, path=[binaries_dir()]))
        load(SEED_MACHINE, SEED, images)
    finally:
        SEED_MACHINE.kill()


def load(machine: Machine, root: Path, images: list[Image]) -> None:
    """Import the images whose current content a machine's containerd lacks."""
    ctr: list[str | Path] = [binaries_dir() / "ctr", f"--address={CONTAINERD_SOCKET}", "--namespace=k8s.io"]
    wait_until(lambda: bool(machine.run([*ctr, "version"])), f"containerd of {machine.name} to answer", seconds=60)
    index = _read_index(root)
    blobs = root / "containerd" / CONTENT / "blobs" / "sha256"
    for image in images:
        if index.get(image.name) == image.key:
            continue
        delta = root / "delta.tar"
        # the transfer service would take twice as long
        command: list[str | Path] = [*ctr, "images", "import", "--local", delta]
        write_delta(image.archive, image.name, lambda digest: (blobs / digest).exists(), delta)
        try:
            machine.run(command)
        except ClusterError:  # a containerd that was killed may have the blob of a layer and not its files
            write_delta(image.archive, image.name, lambda _: False, delta)
            machine.run(command)
        delta.unlink()
        index[image.name] = image.key
        (root / INDEX).write_text(json.dumps(index))


def record_images(images: list[Image]) -> None:
    """Record the images of the cluster, for nodes that return later."""
    IMAGES.write_text(json.dumps([{**asdict(image), "archive": str(image.archive)} for image in images]))


def recorded_images() -> list[Image]:
    """Return the recorded images of the cluster."""
    return [Image(**{**entry, "archive": Path(entry["archive"])}) for entry in json.loads(IMAGES.read_text())]


def clone_seed(store: Path) -> None:
    """Copy the seed's images into a new node's containerd store; do nothing if the store exists."""
    if store.exists():
        return
    source = SEED / "containerd"
    scratch = store.with_name(f"{store.name}.new")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    for database in ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db"):
        (scratch / database).parent.mkdir()
        shutil.copy(source / database, scratch / database)
    run(["cp", "-al", source / CONTENT, scratch])
    for snapshot in (source / SNAPSHOTS).iterdir():
        (scratch / SNAPSHOTS / snapshot.name).mkdir(parents=True)
    shutil.copy(SEED / INDEX, store.parent / INDEX)
    scratch.rename(store)


def bind_script() -> str:
    """Return the shell script that mounts the seed's layers into a node's store when its machine boots."""
    return (
        f"for layer in {shlex.quote(str(SEED / 'containerd' / SNAPSHOTS))}/*; do\n"
        f"  own={NODE_ROOT}/containerd/{SNAPSHOTS}/${{layer##*/}}\n"
        '  [ ! -d "$own" ] || mount --bind -o ro "$layer" "$own"\n'
        "done"
    )


def _has_all(root: Path, images: list[Image]) -> bool:
    index = _read_index(root)
    return all(index.get(image.name) == image.key for image in images)


def _read_index(root: Path) -> dict[str, str]:
    try:
        index: dict[str, str] = json.loads((root / INDEX).read_text())
    except FileNotFoundError:
        return {}
    return index
