"""Keys and archives of the local cluster's images."""

import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from e2e.cluster.image_delta import write_delta
from e2e.cluster.image_store import CONTENT, load
from e2e.cluster.images import Image, Recipe, pip_settings
from e2e.cluster.machine import Machine
from e2e.cluster.run_program import ClusterError


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    (tmp_path / "src" / "__pycache__").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("a = 1")
    (tmp_path / "unrelated").write_text("1")
    (tmp_path / "Containerfile").write_text("FROM scratch")
    return Recipe("localhost/x:dev", tmp_path / "Containerfile", tmp_path, ("src",))


CHANGES = {
    "a file's content": ("src/a.py", "a = 2"),
    "a new file": ("src/b.py", ""),
    "the Containerfile": ("Containerfile", "FROM other"),
}
NO_CHANGES = {
    "a compiled file": "src/__pycache__/a.pyc",
    "a file that is not copied": "unrelated",
}


@pytest.mark.parametrize(("path", "content"), CHANGES.values(), ids=CHANGES.keys())
def test_image_is_rebuilt_when_an_input_changes(recipe: Recipe, path: str, content: str) -> None:
    before = recipe.key()
    (recipe.context / path).write_text(content)

    assert recipe.key() != before


@pytest.mark.parametrize("path", NO_CHANGES.values(), ids=NO_CHANGES.keys())
def test_an_image_is_kept_when_nothing_that_it_copies_changes(recipe: Recipe, path: str) -> None:
    before = recipe.key()
    (recipe.context / path).write_text("changed")

    assert recipe.key() == before


def test_a_renamed_file_changes_the_key(recipe: Recipe) -> None:
    before = recipe.key()
    (recipe.context / "src/a.py").rename(recipe.context / "src/c.py")

    assert recipe.key() != before


PIP_LISTINGS = {
    "nothing set": ("", "[global]\n"),
    "a file's setting": ("global.cert='/a.crt'\n", "[global]\ncert = /a.crt\n"),
    "the environment wins": (
        "global.index-url='https://one'\n:env:.index-url='https://two'\n",
        "[global]\nindex-url = https://two\n",
    ),
    "several lines": (
        "global.extra-index-url='https://one\\nhttps://two'\n",
        "[global]\nextra-index-url = https://one\n    https://two\n",
    ),
    "what only concerns the host": ("global.require-virtualenv='true'\n:env:.user='yes'\n", "[global]\n"),
}


@pytest.mark.parametrize(("listing", "want"), PIP_LISTINGS.values(), ids=PIP_LISTINGS.keys())
def test_a_build_downloads_with_the_hosts_pip_settings(listing: str, want: str) -> None:
    assert pip_settings(listing) == want


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


BASE, SOURCE = b"base layer", b"source layer"
CONFIG = json.dumps({"rootfs": {"diff_ids": [f"sha256:{sha(BASE)}", f"sha256:{sha(SOURCE)}"]}}).encode()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    entry = {"Config": "config.json", "Layers": ["base.tar", "source.tar"], "RepoTags": ["localhost/x:dev"]}
    files = {
        "base.tar": BASE,
        "source.tar": SOURCE,
        "config.json": CONFIG,
        "manifest.json": json.dumps([entry]).encode(),
    }
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return tmp_path / "image.tar"


def read_delta(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {member.name: (tar.extractfile(member) or io.BytesIO()).read() for member in tar}


def test_a_delta_leaves_out_the_layers_that_a_node_has(archive: Path, tmp_path: Path) -> None:
    write_delta(archive, "localhost/x:dev", lambda digest: digest == sha(BASE), tmp_path / "delta.tar")
    files = read_delta(tmp_path / "delta.tar")

    assert f"blobs/sha256/{sha(BASE)}" not in files
    assert files[f"blobs/sha256/{sha(SOURCE)}"] == SOURCE


def test_a_delta_describes_the_whole_image_under_its_name(archive: Path, tmp_path: Path) -> None:
    write_delta(archive, "localhost/x:dev", lambda _: True, tmp_path / "delta.tar")
    files = read_delta(tmp_path / "delta.tar")
    (described,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[f"blobs/{described['digest'].replace(':', '/')}"])

    assert described["annotations"] == {"io.containerd.image.name": "localhost/x:dev"}
    assert [layer["digest"] for layer in manifest["layers"]] == [f"sha256:{sha(BASE)}", f"sha256:{sha(SOURCE)}"]
    assert [layer["size"] for layer in manifest["layers"]] == [len(BASE), len(SOURCE)]
    assert files[f"blobs/{manifest['config']['digest'].replace(':', '/')}"] == CONFIG


def test_every_blob_of_a_delta_is_named_by_its_content(archive: Path, tmp_path: Path) -> None:
    write_delta(archive, "localhost/x:dev", lambda _: False, tmp_path / "delta.tar")
    blobs = {name: content for name, content in read_delta(tmp_path / "delta.tar").items() if name.startswith("blobs/")}

    assert len(blobs) == 4
    assert all(name == f"blobs/sha256/{sha(content)}" for name, content in blobs.items())


def test_a_node_that_lost_the_files_of_a_layer_gets_the_whole_image(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine("node", setup="")
    blobs = tmp_path / "containerd" / CONTENT / "blobs/sha256"
    blobs.mkdir(parents=True)
    (blobs / sha(BASE)).write_bytes(BASE)
    imported: list[dict[str, bytes]] = []

    def run(self: Machine, argv: Sequence[str | Path], stdin: str | None = None) -> str:
        if "import" in argv:
            imported.append(read_delta(tmp_path / "delta.tar"))
            if len(imported) == 1:
                raise ClusterError("parent snapshot does not exist")
        return "the output"

    monkeypatch.setattr(Machine, "run", run)

    load(machine, tmp_path, [Image("localhost/x:dev", "key", archive)])

    assert [f"blobs/sha256/{sha(BASE)}" in files for files in imported] == [False, True]
    assert json.loads((tmp_path / "images.json").read_text()) == {"localhost/x:dev": "key"}
