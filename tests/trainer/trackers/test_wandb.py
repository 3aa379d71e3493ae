"""Weights & Biases: the real library against a server on loopback."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.trainer.wandb_server import WandBServer, serve_wandb

KEY = "canary-0123456789abcdef0123456789abcdef0123456789"
UID = "11111111-2222-3333-4444-555555555555"
WORLD = """
import logging, sys, os
from trainingjob_api.spec.metrics import Metrics
from trainingjob_api.world import JobIdentity
from trainingjob_trainer.store.opening import open_store
from trainingjob_trainer.trackers import tracker, wandb
from trainingjob_trainer.trackers.metrics_file import MetricsWriter
logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
wandb.CONNECT_SECONDS, tracker.CLOSE_SECONDS = float(os.environ["CONNECT"]), 120
store = open_store(sys.argv[1])
generation, steps = int(sys.argv[2]), [int(step) for step in sys.argv[3].split()]
key = {"secretKeyRef": {"name": "keys", "key": "wandb"}}
metrics = Metrics(wandb={"project": "research", "entity": "team", "tags": ["7b"], "apiKey": key}, tensorboard=False)
job = JobIdentity(name="demo", namespace="research", uid="11111111-2222-3333-4444-555555555555")
with MetricsWriter(metrics, tracker.Run(job, store, 0), generation) as writer:
    for step in steps:
        writer.write_step({"time": 1.0, "generation": generation, "step": step, "loss": 1.0 / step})
    writer.write_evaluation(steps[-1], "held", {"loss": 1.25})
sys.stderr.flush()
os._exit(0)  # as a trainer ends
"""
"""A world of a job, from its first to its last metrics. A process, because the library and its helper keep state."""


def run_world(root: Path, url: str, generation: int, steps: str, *, connect: float = 60) -> str:
    """Return what a world logs."""
    environment = os.environ | {
        "WANDB_API_KEY": KEY, "WANDB_BASE_URL": url, "HOME": str(root), "TMPDIR": str(root), "CONNECT": str(connect)
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WORLD, str(root), str(generation), steps],
        capture_output=True, env=environment, text=True, check=True,
    )  # fmt: skip
    return done.stdout + done.stderr


def points_of(server: WandBServer, *names: str) -> list[tuple[Any, ...]]:
    return [tuple(point.get(name) for name in names) for point in server.histories[f"team/research/{UID}"]]


@pytest.mark.thorough
def test_worlds_of_a_job_continue_one_run_and_repeat_the_steps_that_they_train_again(tmp_path: Path) -> None:
    with serve_wandb() as server:
        logs = run_world(tmp_path, server.url, 1, "1 2 4") + run_world(tmp_path, server.url, 2, "4 5")

    assert points_of(server, "step", "generation", "train/loss", "held_out/held/held_out_loss") == [
        (1, 1, 1.0, None),
        (2, 1, 0.5, None),
        (4, 1, 0.25, None),
        (4, 1, None, 1.25),
        (4, 2, 0.25, None),
        (5, 2, 0.2, None),
        (5, 2, None, 1.25),
    ]
    assert [number for (number,) in points_of(server, "_step")] == list(range(7))
    assert {(run["name"], run["project"], run["entity"]) for run in server.runs} == {(UID, "research", "team")}
    assert (server.runs[0]["displayName"], server.runs[0]["tags"]) == ("demo", ["7b"])
    assert (server.keys, logs) == ({KEY}, "")
    assert find_key(tmp_path) == []


@pytest.mark.slow
def test_an_unreachable_server_costs_the_points_and_one_warning_without_the_key(tmp_path: Path) -> None:
    logs = run_world(tmp_path, "http://127.0.0.1:9", 1, "1 2", connect=1)

    first, *rest = logs.splitlines()
    assert first.startswith("tracker connect failed tracker=wandb error=")
    assert rest == ["last metrics not sent tracker=wandb"]
    assert KEY not in logs
    assert find_key(tmp_path) == []


def find_key(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
