"""Object stores through a network that fails: the guarantees of the port hold, and errors name what to do."""

import errno
import random
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.trainer.fault_proxy import FAULTS, FaultProxy
from tests.support.trainer.object_servers import SCHEMES, ObjectServers, new_root
from trainingjob_trainer.store import bucket_store, gcs_bucket, retry
from trainingjob_trainer.store.bucket import PART_BYTES
from trainingjob_trainer.store.bucket_store import BucketStore
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.store.port import Store

SEQUENCES, MIN_FAULTS = 15, 10
"""Random sequences of faults a store, and the minimum number of faults in each: about 25, and more than 300 in all."""


class Broken(NamedTuple):
    """A store behind a proxy that injects faults, and the same store without it."""

    store: Store
    direct: Store
    proxy: FaultProxy


@pytest.fixture(params=SCHEMES)
def broken(
    request: pytest.FixtureRequest, object_servers: ObjectServers, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Broken]:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(retry, "MAX_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 20.0)
    root, proxy = new_root(request.param), object_servers.proxy(request.param)
    with object_servers.environment(request.param):
        direct = open_store(root)
    with object_servers.environment(request.param, proxy.url):
        yield Broken(open_store(root), direct, proxy)
    proxy.stop()


@pytest.mark.thorough
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_is_repeated_after_a_fault(broken: Broken, fault: str) -> None:
    store, direct, proxy = broken
    for act in (
        lambda: store.write("a/b", (b"numbers",)),
        lambda: store.size("a/b"),
        lambda: store.read("a/b", 9),
        lambda: store.list_folder("a"),
        lambda: store.delete("a/b"),
    ):
        proxy.inject(fault)
        act()
    assert proxy.injected == [fault] * 5
    assert direct.list_files("a") == []


def test_a_creation_whose_answer_is_lost_has_succeeded(broken: Broken) -> None:
    broken.proxy.inject("lost")
    broken.store.create_exclusive("OWNER", b"mine")

    broken.proxy.inject("lost")
    with pytest.raises(FileExistsError):
        broken.store.create_exclusive("OWNER", b"mine")
    assert broken.direct.read("OWNER", 9) == b"mine"


@pytest.mark.parametrize("fault", ["429", "503", "reset", "busy page"])
def test_the_budget_of_a_request_ends(broken: Broken, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 0.2)
    broken.proxy.choose = lambda _method, _path: fault
    began = time.monotonic()

    with pytest.raises(OSError, match=r"runs") as caught:
        broken.store.read("a", 9)
    assert time.monotonic() - began < 5
    assert caught.value.errno == (errno.EIO if fault == "reset" else errno.EAGAIN)


@pytest.mark.parametrize("fault", ["html", "html 403", "html 404"])
def test_a_web_page_is_no_answer_and_is_not_requested_again(broken: Broken, fault: str) -> None:
    broken.proxy.choose = lambda _method, _path: fault
    for number, act in enumerate((lambda: broken.store.read("a", 9), lambda: broken.store.write("a", (b"1",)))):
        with pytest.raises(OSError, match=r"is a web page .* Check the endpoint and the proxies") as caught:
            act()
        assert caught.value.errno == errno.EIO
        assert len(broken.proxy.injected) == number + 1


def test_refused_credentials_are_no_endless_loop(broken: Broken) -> None:
    broken.proxy.choose = lambda _method, _path: "expired"

    with pytest.raises(OSError, match="refuses the credentials") as caught:
        broken.store.read("a", 9)
    assert caught.value.errno == errno.EACCES
    assert len(broken.proxy.injected) == retry.MAX_REFUSALS


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["", *FAULTS])
def test_a_large_object_is_whole_after_faults(broken: Broken, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "PART_BYTES", 5 << 20)
    store, direct, proxy = broken
    content = random.Random(1).randbytes(17 << 20)  # noqa: S311  # the same content in each run
    number = 0

    def choose(_method: str, _path: str) -> str:
        nonlocal number
        number += 1
        return fault if number % 3 == 0 else ""

    proxy.choose = choose
    store.write("large", (content[:3], content[3:]))

    assert b"".join(store.read_chunks("large")) == content
    assert store.read_range("large", 4 << 20, 11 << 20) == content[4 << 20 : 11 << 20]
    assert [entry.name for entry in direct.list_folder()] == ["large"]


def test_an_interrupted_upload_changes_nothing(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "PART_BYTES", 5 << 20)

    def fail() -> Iterator[bytes]:
        yield bytes(12 << 20)
        raise ValueError("the source is damaged")

    broken.direct.write("large", (b"old",))
    with pytest.raises(ValueError, match="the source is damaged"):
        broken.store.write("large", fail())

    assert broken.direct.read("large", 9) == b"old"
    assert [entry.name for entry in broken.direct.list_folder()] == ["large"]


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(SEQUENCES))
def test_random_faults_lose_and_duplicate_nothing(broken: Broken, seed: int) -> None:
    store, direct, proxy = broken
    proxy.inject_randomly(seed)
    rng = random.Random(seed)  # noqa: S311  # the same calls in each run
    expected: dict[str, bytes] = {}
    for number in range(60):
        name = f"{rng.choice('ab')}/{rng.randrange(6)}"
        match rng.choice(("write", "create", "delete", "read", "list")):
            case "write":
                expected[name] = str(number).encode()
                store.write(name, (expected[name],))
            case "create" if name in expected:
                with pytest.raises(FileExistsError):
                    store.create_exclusive(name, b"other")
            case "create":
                expected[name] = str(number).encode()
                store.create_exclusive(name, expected[name])
            case "delete":
                expected.pop(name, None)
                store.delete(name)
            case "read" if name in expected:
                assert store.read(name, 9) == expected[name]
            case "read":
                with pytest.raises(FileNotFoundError):
                    store.read(name, 9)
            case "list":
                assert store.list_files("a") == sorted(each[2:] for each in expected if each.startswith("a/"))
    proxy.stop()

    assert {f"{folder}/{name}" for folder in "ab" for name in direct.list_files(folder)} == expected.keys()
    assert len(proxy.injected) >= MIN_FAULTS


def test_a_missing_bucket_is_named(broken: Broken) -> None:
    scheme = broken.direct.root.partition("://")[0]

    with pytest.raises(FileNotFoundError, match=f"{scheme}://missing"):
        open_store(f"{scheme}://missing/run").list_folder()


def test_a_log_is_uploaded_at_the_end(broken: Broken, tmp_path: Path) -> None:
    log = broken.store.open_log("metrics")
    log.append(b"1\n")
    log.append(b"2\n")
    assert broken.direct.read("metrics", 99) == b""
    log.close()

    assert broken.direct.read("metrics", 99) == b"1\n2\n"


def test_a_log_is_uploaded_at_once_when_it_is_flushed(broken: Broken) -> None:
    log = broken.store.open_log("metrics")
    log.append(b"1\n")
    log.flush()

    wait_for(broken, b"1\n")
    log.flush()
    log.append(b"2\n")
    log.flush()
    log.close()
    assert broken.direct.read("metrics", 99) == b"1\n2\n"


def test_the_end_of_a_log_waits_for_its_upload(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    log = broken.store.open_log("metrics")
    write, begun, go_on = BucketStore.write, threading.Event(), threading.Event()

    def write_later(store: BucketStore, name: str, chunks: Iterable[bytes]) -> None:
        begun.set()
        go_on.wait(60)
        write(store, name, chunks)

    monkeypatch.setattr(BucketStore, "write", write_later)
    log.append(b"1\n")
    log.flush()
    begun.wait(60)
    threading.Timer(0.05, go_on.set).start()
    log.close()

    assert broken.direct.read("metrics", 99) == b"1\n"


def wait_for(broken: Broken, content: bytes) -> None:
    deadline = time.monotonic() + 60
    while broken.direct.read("metrics", 99) != content:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_log_is_uploaded_meanwhile(broken: Broken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_store, "FLUSH_SECONDS", 0.01)
    log = broken.store.open_log("metrics")
    log.append(b"1\n")

    wait_for(broken, b"1\n")
    log.close()


def test_a_part_that_the_network_damages_is_sent_again(
    object_servers: ObjectServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 0.001)
    monkeypatch.setattr(retry, "BUDGET_SECONDS", 20.0)
    damaged = iter([{"crc32c": "of other bytes"}])
    parse = gcs_bucket._parse
    monkeypatch.setattr(gcs_bucket, "_parse", lambda answer: next(damaged, None) or parse(answer))
    with object_servers.environment("gs"):
        store = open_store(new_root("gs"))
        store.write("model", (bytes(PART_BYTES), b"end"))
        assert store.size("model") == PART_BYTES + 3

        monkeypatch.setattr(retry, "BUDGET_SECONDS", 0.01)
        monkeypatch.setattr(gcs_bucket, "_checksum", lambda _: "of other bytes")
        with pytest.raises(OSError, match="differs from what was sent"):
            store.write("other", (bytes(PART_BYTES), b"end"))
        assert [entry.name for entry in store.list_folder()] == ["model"]
