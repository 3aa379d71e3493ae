"""Builds of the local cluster's programs and their progress. The compiler is a script here."""

import os
import stat
from pathlib import Path

import pytest

from e2e.cluster.binaries import binaries_dir, ensure_binaries, ensure_charts
from e2e.cluster.go_tools import PACKAGES_PER_LINE
from e2e.cluster.run_program import ClusterError

GO = r"""#!/bin/sh
echo "$@" >> "$ASKED"
case "$1" in
version) echo "go version go1.99.0 linux/amd64" ;;
list) seq -f 'package-%g' 600 ;;
mod) echo "{\"Dir\": \"$SOURCE\"}" ;;
build)
  echo package-1; echo "# package-2" >&2; echo "words of the compiler" >&2; seq -f 'package-%g' 2 600
  test -z "$BROKEN" || exit 1
  for word in "$@"; do case "$word" in -o=*) out=${word#-o=} ;; esac; done
  for word in "$@"; do case "$word" in
    */server/v3) echo of-etcd > "$out/server" ;;
    */*.*|-*) ;;
    */*) echo "of-$word" > "$out/${word##*/}" ;;
  esac; done ;;
esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a fake compiler first on PATH; return the file in which it records its calls."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO)
    go.chmod(stat.S_IRWXU)
    notes = tmp_path / "asked"
    monkeypatch.setenv("PATH", f"{go.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("ASKED", str(notes))
    return notes


def test_missing_programs_are_built_together(asked: Path) -> None:
    ensure_binaries(["etcd"])
    ensure_binaries(["etcd", "kubectl", "helm"])

    builds = [line.split() for line in asked.read_text().splitlines() if line.startswith("build")]
    assert [line[-1] for line in builds] == ["go.etcd.io/etcd/server/v3", "helm.sh/helm/v4/cmd/helm"]
    assert "k8s.io/kubernetes/cmd/kubectl" in builds[1]
    assert {path.name for path in binaries_dir().iterdir()} == {"etcd", "kubectl", "helm"}
    assert (binaries_dir() / "etcd").read_text() == "of-etcd\n"


def test_existing_programs_are_not_built(asked: Path) -> None:
    ensure_binaries(["etcd"])
    asked.unlink()

    ensure_binaries(["etcd"])

    assert not asked.exists()


def test_build_reports_its_progress(asked: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ensure_binaries(["etcd"])

    reported = capsys.readouterr().err
    assert [line.split("[")[1] for line in reported.splitlines() if "[" in line] == [
        f"{number}/600] package-{number}" for number in range(1, 600, PACKAGES_PER_LINE)
    ]


def test_failed_build_ends_with_the_compiler_s_output(asked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKEN", "1")

    with pytest.raises(ClusterError, match=r"exit code 1:\n# package-2\nwords of the compiler$"):
        ensure_binaries(["etcd"])

    assert not (binaries_dir() / "etcd").exists()


def test_the_charts_of_jobset_are_those_of_its_source(
    asked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chart = tmp_path / "source" / "charts" / "jobset"
    chart.mkdir(parents=True)
    (chart / "Chart.yaml").write_text("name: jobset")
    monkeypatch.setenv("SOURCE", str(tmp_path / "source"))

    assert (ensure_charts() / "jobset" / "Chart.yaml").read_text() == "name: jobset"
    assert ensure_charts() == binaries_dir() / "jobset-charts"
