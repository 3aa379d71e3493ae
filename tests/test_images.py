"""Builds of the images: commands of each builder, environments, the pin of the base image and bills of materials."""

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tools import check_images, images, pin_base, sbom
from tools.images import ImageError, Target, find_builder, image_commands, list_images
from trainingjob_api.images import TRAINER_REPOSITORIES

ROOT = Path(__file__).parent.parent
DIGEST = f"sha256:{'ab' * 32}"
PINNED = f"registry.example/python:3.12@{DIGEST}"
TARGET = Target("registry.example/ml", "1.0", "c0ffee", PINNED, is_pushed=True)
LABELS = (
    "--label=org.opencontainers.image.version=1.0 --label=org.opencontainers.image.revision=c0ffee "
    f"--label=org.opencontainers.image.base.name=registry.example/python:3.12 "
    f"--label=org.opencontainers.image.base.digest={DIGEST}"
)
ARGUMENTS = f"--build-arg=PYTHON_IMAGE={PINNED} --build-arg=PLATFORM=tpu {LABELS}"
NAME = "registry.example/ml/trainingjob-trainer-tpu:1.0"
KANIKO = "--context=dir://. --dockerfile=trainer/Containerfile --skip-unused-stages=true --cleanup"
COMMANDS = {
    "buildah": [
        f"buildah build --layers {ARGUMENTS} --file=trainer/Containerfile --tag={NAME} .",
        f"buildah push {NAME}",
    ],
    "docker": [f"docker build {ARGUMENTS} --file=trainer/Containerfile --tag={NAME} .", f"docker push {NAME}"],
    "kaniko": [
        f"/kaniko/executor {KANIKO} {ARGUMENTS} --destination={NAME}",
    ],
}


@pytest.mark.parametrize("builder", images.BUILDERS)
def test_each_builder_builds_and_pushes_the_image_of_a_platform(builder: str) -> None:
    operator, trainer = list_images("tpu")

    assert [" ".join(command) for command in image_commands(builder, trainer, TARGET)] == COMMANDS[builder]
    assert not [word for command in image_commands(builder, operator, TARGET) for word in command if "PLATFORM" in word]


def test_the_first_installed_builder_is_used() -> None:
    assert find_builder("", {"docker": "/bin/docker", "/kaniko/executor": "yes"}.get) == "docker"
    assert find_builder("kaniko", {"docker": "/bin/docker", "/kaniko/executor": "yes"}.get) == "kaniko"


REJECTED = {
    "no builder": (lambda: find_builder("", {}.get), "Install buildah or docker, or run this in the image of kaniko."),
    "the wanted one is missing": (lambda: find_builder("docker", {}.get), "BUILDER=docker: docker is not installed."),
    "an unknown builder": (lambda: find_builder("podman", {}.get), "must be one of buildah, docker, kaniko."),
    "an unknown platform": (lambda: list_images("gpu"), "PLATFORM=gpu: must be one of cpu, tpu, cuda13."),
    "a push without a digest": (
        lambda: list(
            image_commands("docker", list_images("cpu")[1], Target("r", "1", "", "python:3.12", is_pushed=True))
        ),
        "the base image python:3.12 of trainer/Containerfile has no digest",
    ),
}


@pytest.mark.parametrize(("ask", "words"), REJECTED.values(), ids=REJECTED.keys())
def test_a_build_that_cannot_be_names_what_to_change(ask, words: str) -> None:
    with pytest.raises(ImageError) as caught:
        ask()

    assert words in str(caught.value)


def test_the_commands_can_be_printed_for_another_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main(["cuda13", "--builder=kaniko", "--dry-run", "--registry=r.example/"]) == 0

    assert "--build-arg=PLATFORM=cuda13" in (printed := capsys.readouterr().out)
    assert "--destination=r.example/trainingjob-trainer-cuda13:0.1.0 --no-push" in printed


def test_an_invalid_argument_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert images.main([""]) == 2

    assert capsys.readouterr().err == "PLATFORM=: must be one of cpu, tpu, cuda13.\n"


# Containerfiles

STAGE = re.compile(r"^FROM \S+(?: AS (\S+))?\n(.*?)(?=^FROM|\Z)", re.MULTILINE | re.DOTALL)


def read_stages(folder: str) -> dict[str, str]:
    """Return the text of each stage of a Containerfile; the last has no name."""
    return dict(STAGE.findall((ROOT / folder / "Containerfile").read_text()))


ENVIRONMENTS = {
    "cpu": {},
    "tpu": {},
    # https://cloud.google.com/kubernetes-engine/docs/how-to/gpus: the driver's folder.
    # https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html: capabilities.
    "cuda13": {
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64:/usr/local/nvidia/lib",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    },
}


@pytest.mark.parametrize("platform", TRAINER_REPOSITORIES)
def test_a_platform_has_its_lock_and_the_environment_that_providers_document(platform: str) -> None:
    stage = read_stages("trainer")[f"platform-{platform}"]
    image = list_images(platform)[1]
    set_here = re.findall(r"(\w+)=(\S+)", " ".join(re.findall(r"^ENV (.*)$", stage, re.MULTILINE)))

    assert dict(set_here) == ENVIRONMENTS[platform]
    assert f"COPY {sbom.lock_path(image).relative_to(ROOT)} /opt/requirements.lock\n" in stage
    assert sbom.lock_path(image).exists()


@pytest.mark.parametrize("folder", ["operator", "trainer"])
def test_an_image_runs_without_root_and_describes_itself(folder: str) -> None:
    last = read_stages(folder)[""]

    assert "\nUSER 65532:65532\n" in last
    assert all(f'org.opencontainers.image.{label}="' in last for label in ("title", "description", "licenses"))


INSTALL = re.compile(r"^RUN .*?\bpip (.*)$", re.MULTILINE)
CONTAINERFILES = ("operator/Containerfile", "trainer/Containerfile", "e2e/cluster/images/maxtext.Containerfile")


@pytest.mark.parametrize("path", CONTAINERFILES)
def test_an_image_installs_nothing_without_a_hash(path: str) -> None:
    """Build isolation would download the build backend by its version alone."""
    locked = "install --no-cache-dir --no-deps --require-hashes --requirement"
    build, wheel, packages, project = INSTALL.findall((ROOT / path).read_text())

    assert build == f"{locked} build.lock"
    assert wheel == "wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /dist ."
    assert packages.startswith(f"{locked} /opt/")
    assert project.startswith("install --no-cache-dir --no-deps --no-index ")


def test_both_images_have_the_same_base_by_a_whole_reference() -> None:
    operator, trainer = map(images.read_base, list_images("cpu"))

    assert operator == trainer
    assert re.fullmatch(r"[a-z.]+/[a-z/]+:[a-z0-9.-]+(@sha256:[0-9a-f]{64})?", operator)


# The pin of the base image


def test_a_pin_keeps_the_tag_and_replaces_an_older_digest() -> None:
    text = f"# base\nARG PYTHON_IMAGE=r.example/python:3.12@sha256:{'00' * 32}\nARG PLATFORM=cpu\n"

    pinned = pin_base.pin(text, {"r.example/python:3.12": DIGEST}.__getitem__)

    assert pinned == f"# base\nARG PYTHON_IMAGE=r.example/python:3.12@{DIGEST}\nARG PLATFORM=cpu\n"


class Registry(BaseHTTPRequestHandler):
    """A registry that gives anonymous clients a token, as public ones do."""

    def do_HEAD(self) -> None:
        if self.headers["Authorization"] != "Bearer t0ken":
            self.send_response(401)
            realm = f"http://{self.headers['Host']}/token"
            self.send_header("WWW-Authenticate", f'Bearer realm="{realm}",service="registry",scope="repository:pull"')
        elif self.path == "/v2/library/python/manifests/3.12" and "index" in self.headers["Accept"]:
            self.send_response(200)
            self.send_header("Docker-Content-Digest", DIGEST)
        else:
            self.send_response(404 if "python" in self.path else 200)
        self.end_headers()

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/token?service=registry&scope=repository%3Apull" else 400)
        self.end_headers()
        self.wfile.write(b'{"token": "t0ken"}')

    def log_message(self, *words: object) -> None:
        del words


@pytest.fixture
def registry() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Registry)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_digest_comes_from_the_registry(registry: str) -> None:
    assert pin_base.resolve(f"{registry}/library/python:3.12") == DIGEST


@pytest.mark.parametrize(
    ("name", "words"), [("python:4", "gave no digest"), ("other:1", "answered with the digest ''")]
)
def test_a_registry_without_the_image_is_an_error(registry: str, name: str, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        pin_base.resolve(f"{registry}/{name}")


def test_an_unreachable_registry_changes_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "ARG PYTHON_IMAGE=127.0.0.1:1/python:3.12\n"
    for folder in ("operator", "trainer"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "Containerfile").write_text(text)

    assert pin_base.main(tmp_path) == 1
    assert "127.0.0.1:1/python:3.12: the registry 127.0.0.1:1 gave no digest" in capsys.readouterr().err
    assert (tmp_path / "trainer/Containerfile").read_text() == text


# Bills of materials


@pytest.mark.parametrize("image", sbom.all_images(), ids=lambda image: image.repository)
def test_a_bill_of_materials_is_valid_and_repeatable(image: images.Image) -> None:
    text = sbom.render(image)

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert text == sbom.render(image)
    assert "timestamp" not in text


def test_a_bill_of_materials_lists_what_the_lock_installs() -> None:
    bill = json.loads(sbom.render(list_images("cuda13")[1]))
    listed = {one["name"]: one["version"] for one in bill["components"]}

    assert {"jax", "jax-cuda13-plugin", "nvidia-nccl-cu13", "trainingjob", "docker.io/library/python"} <= listed.keys()
    assert "colorama" not in listed  # of Windows alone
    assert bill["metadata"]["component"]["name"] == "trainingjob-trainer-cuda13"


def test_bills_of_materials_are_written_for_each_image(tmp_path: Path) -> None:
    assert sbom.main([str(tmp_path)]) == 0

    assert len(list(tmp_path.glob("*.cdx.json"))) == 4


# Locks in use


def test_the_lock_of_each_platform_is_put_to_use() -> None:
    assert check_images.PROBES.keys() == TRAINER_REPOSITORIES.keys()
    for probe in check_images.PROBES.values():
        compile(check_images.SETUP + probe, "probe", "exec")


def test_only_the_locks_of_platforms_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    assert check_images.main(["gpu"]) == 2

    assert capsys.readouterr().err == "PLATFORM=gpu: must be one of cpu, tpu, cuda13.\n"


@pytest.mark.thorough
def test_the_probe_of_the_cpu_runs_with_what_is_installed(tmp_path: Path) -> None:
    check_images.run_probe("cpu", Path(sys.executable), tmp_path)
