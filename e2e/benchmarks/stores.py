"""Object stores on loopback: rates of upload and download, and how long a save to a bucket blocks training.

The raw rate is that of TensorStore's own client with the same number of requests in flight. The floor of a rate is 0.7
of it. An upload to Google Cloud Storage ends with the request that composes its parts. The raw rate has one as well,
because the server of the tests copies and hashes the parts in it; Google's own only links them. Another row compares
with the rate of one plain object of the same bytes, which is written with one request. A save to a bucket must
block training no longer than a save to a folder of this machine.
"""

import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import jax.numpy as jnp
import requests
import tensorstore
from rich.console import Console

from e2e.benchmarks.figures import Figure, publish
from e2e.object_stores.servers import BUCKET, SERVE
from trainingjob_trainer.checkpoint.formats.orbax_writer import OrbaxWriter
from trainingjob_trainer.runtime.process_group import ProcessGroup
from trainingjob_trainer.store.array_paths import kvstore_spec
from trainingjob_trainer.store.bucket import PARALLEL_PARTS, PART_BYTES
from trainingjob_trainer.store.opening import open_store

NUM_PARTS = 32
RUNS = 5
FLOOR = 0.7
STATE_FLOATS = 16 << 20


def measure_rates(scheme: str) -> list[Figure]:
    """Return the rates of upload and download in MB/s, against the floor of the raw rate."""
    content = os.urandom(PART_BYTES)
    uri = f"{scheme}://{BUCKET}/{uuid.uuid4().hex}"
    store = open_store(uri)
    raw_root = f"{uri.rpartition('/')[2]}/raw"
    raw = tensorstore.KvStore.open(
        kvstore_spec(f"{uri}/raw/"),
        context=tensorstore.Context({f"{'gcs' if scheme == 'gs' else scheme}_request_concurrency": _limit()}),
    ).result()

    def upload_raw() -> None:
        for future in [raw.write(f"{number}", content) for number in range(NUM_PARTS)]:
            future.result()
        if scheme == "gs":
            _compose([f"{raw_root}/{number}" for number in range(NUM_PARTS)])

    def upload_plain() -> None:
        raw.write("plain", content * NUM_PARTS).result()

    def download_raw() -> None:
        for future in [raw.read(f"{number}") for number in range(NUM_PARTS)]:
            future.result()

    def download() -> None:
        for _ in store.read_chunks("large"):
            pass

    upload = _rate(lambda: store.write("large", (content for _ in range(NUM_PARTS))))
    up, plain, down = _rate(upload_raw), _rate(upload_plain), _rate(download_raw)
    return [
        Figure(f"{scheme}: upload", upload, "MB/s", FLOOR * up),
        Figure(f"{scheme}: upload, to one plain object", upload, "MB/s", FLOOR * plain),
        Figure(f"{scheme}: download", _rate(download), "MB/s", FLOOR * down),
    ]


def measure_save(root: str) -> float:
    """Return the median seconds for which the save of a state blocks, after a first save."""
    writer = OrbaxWriter(ProcessGroup(0, 1))
    state = {"params": {"w": jnp.ones((STATE_FLOATS,), jnp.float32)}}
    blocked = []
    for number in range(RUNS + 1):
        start = time.perf_counter()
        pending = writer.copy(open_store(root).locate(f"lineage-0/{number}"), state)
        blocked.append(time.perf_counter() - start)
        if "://" not in root:
            Path(root, f"lineage-0/{number}").mkdir(parents=True)
        pending.write()
        pending.finalize()
    return statistics.median(blocked[1:])


def _limit() -> dict[str, Any]:
    return {"limit": PARALLEL_PARTS}


def _compose(keys: list[str]) -> None:
    """Compose objects to one by a single request."""
    url = f"{os.environ['STORAGE_EMULATOR_HOST']}/storage/v1/b/{BUCKET}/o/{quote(f'{keys[0]}-all', safe='')}/compose"
    content = {
        "sourceObjects": [{"name": key} for key in keys],
        "destination": {"contentType": "application/octet-stream"},
    }
    requests.post(url, json=content, timeout=60).raise_for_status()


def _rate(operation: Callable[[], None]) -> float:
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        operation()
        seconds.append(time.perf_counter() - start)
    return NUM_PARTS * PART_BYTES / 1e6 / statistics.median(seconds)


def main() -> None:
    """Measure all stores, and publish the figures."""
    figures = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = measure_save(f"{scratch}/run")
        for scheme, serve in SERVE.items():
            files = Path(scratch, scheme)
            files.mkdir()
            with serve(files) as server:
                os.environ.update(server.environment())
                figures += measure_rates(scheme)
                blocked = measure_save(f"{scheme}://{BUCKET}/{uuid.uuid4().hex}")
                figures.append(Figure(f"{scheme}: save blocks", blocked, "s", folder))
    publish("stores", figures, Console())


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    main()
