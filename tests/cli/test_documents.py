"""Reading TrainingJobs from files: documents of other kinds are named, and errors are explained."""

import io
from pathlib import Path
from typing import Any

import pytest

from trainingjob_operator.cli.documents import read_documents, read_single_job
from trainingjob_operator.cli.errors import CommandError

JOB = "apiVersion: trainingjob.dev/v1alpha1\nkind: TrainingJob\nmetadata: {name: a}\n"
OTHER = "apiVersion: v1\nkind: ConfigMap\n"


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


VALUES = {
    "exponent without a point": ("3e-4", 3e-4),
    "exponent with a point": ("3.0e-4", 3e-4),
    "whole number": ("1_000", 1000),
    "hexadecimal": ("0x1f", 31),
    "negative": ("-3", -3),
    "date stays text": ("2026-11-21", "2026-11-21"),
    "clock stays text": ("1:30", "1:30"),
    "quantity stays text": ("5m", "5m"),
    "truth": ("true", True),
    **{f"the truth {word}": (word, True) for word in ("y", "Y", "yes", "On", "TRUE")},
    **{f"the untruth {word}": (word, False) for word in ("n", "N", "no", "Off", "FALSE")},
    "a word that begins like truth": ("yes-man", "yes-man"),
    "nothing": ("", None),
}


@pytest.mark.parametrize(("text", "want"), VALUES.values(), ids=VALUES.keys())
def test_values_are_read_as_kubectl_reads_them(text: str, want: Any, tmp_path: Path) -> None:
    (document,) = read_documents([write(tmp_path, f"a: {text}\n")])

    assert document.content == {"a": want}
    assert type(document.content["a"]) is type(want)


UNREADABLE = {
    "a key that stands twice": (
        "a: 1\nb: 2\na: 3\n",
        "not valid YAML: the key `a` must be unique, but occurs twice in line 3, column 1.",
    ),
    "broken syntax": ("a: [1\nb: 2\n", "not valid YAML: expected ',' or ']', but got ':' in line 2, column 2."),
    "deep nesting": ("[" * 1200, "not valid YAML: it is nested too deeply."),
    "bytes that are no text": (b"a: \xff", "is not UTF-8 text: invalid start byte at byte 3."),
    "a tag that makes objects": ("!!python/object:os.system {}", "could not determine a constructor for the tag"),
}


@pytest.mark.parametrize(("text", "want"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_unreadable_document_reports_the_reason(text: str | bytes, want: str, tmp_path: Path) -> None:
    with pytest.raises(CommandError) as caught:
        read_documents([write(tmp_path, text)])

    assert want in str(caught.value)


def test_missing_file_is_reported() -> None:
    with pytest.raises(CommandError, match=r"Cannot read nowhere.yaml: No such file or directory."):
        read_documents(["nowhere.yaml"])


def test_documents_are_named_by_their_place(tmp_path: Path) -> None:
    path = write(tmp_path, f"{JOB}---\n---\n{OTHER}")

    documents = read_documents([path])

    assert [(one.location, one.is_job, one.name) for one in documents] == [
        (f"{path}, document 1,", True, "a"),
        (f"{path}, document 3,", False, ""),
    ]


def test_standard_input_is_a_file_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(JOB.encode())))

    assert read_single_job("-").name == "a"


NOT_ONE = {
    "another kind": (OTHER, "must hold one TrainingJob: {path} is a ConfigMap, not a TrainingJob."),
    "no object": ("- 1\n", "must hold one TrainingJob: {path} is not a Kubernetes object (it has no `kind`)."),
    "nothing": ("", "must hold one TrainingJob: it is empty."),
    "another version": (
        JOB.replace("v1alpha1", "v2"),
        "is a TrainingJob of apiVersion 'trainingjob.dev/v2', not 'trainingjob.dev/v1alpha1'.",
    ),
    "two": (
        f"{JOB}---\n{JOB.replace('a}', 'b}')}",
        'must hold one TrainingJob, but holds 2 ("a", "b"). Move one to a separate file.',
    ),
}


@pytest.mark.parametrize(("text", "want"), NOT_ONE.values(), ids=NOT_ONE.keys())
def test_one_job_is_wanted(text: str, want: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)

    with pytest.raises(CommandError) as caught:
        read_single_job(path)

    assert want.format(path=path) in str(caught.value)


MISSPELT: dict[str, tuple[str, str, bool]] = {
    "as it should be": ("trainingjob.dev/v1alpha1", "TrainingJob", False),
    "small letters": ("trainingjob.dev/v1alpha1", "Trainingjob", True),
    "all small letters": ("trainingjob.dev/v1alpha1", "trainingjob", True),
    "several of them": ("trainingjob.dev/v1alpha1", "TrainingJobs", True),
    "with a dash": ("v1", "Training-Job", True),
    "a letter too few": ("v1", "TraningJob", True),
    "no version": ("", "TrainingJob", True),
    "another version": ("trainingjob.dev/v1", "TrainingJob", True),
    "a misspelt group": ("trainingjobs.dev/v1alpha1", "TrainingJob", True),
    "another kind of this group": ("trainingjob.dev/v1alpha1", "TrainJob", True),
    "another project's job of this name": ("sagemaker.services.k8s.aws/v1alpha1", "TrainingJob", False),
    "another project's job": ("trainer.kubeflow.org/v1alpha1", "TrainJob", False),
    "a map": ("v1", "ConfigMap", False),
    "a JobSet": ("jobset.x-k8s.io/v1alpha2", "JobSet", False),
}


@pytest.mark.parametrize(("version", "kind", "want"), MISSPELT.values(), ids=MISSPELT.keys())
def test_a_misspelt_job_is_no_success(version: str, kind: str, want: bool, tmp_path: Path) -> None:
    path = write(tmp_path, f"{JOB}---\napiVersion: {version}\nkind: {kind}\n")
    other = read_documents([path])[1]

    assert other.is_misspelt is want


def test_a_list_is_no_misspelt_job(tmp_path: Path) -> None:
    assert not read_documents([write(tmp_path, "- 1\n")])[0].is_misspelt


@pytest.mark.parametrize(("name", "want"), [("1234", "1234"), ("12e5", "1200000"), ("no", "false"), ("[a]", "")])
def test_a_name_that_is_no_text_is_shown(name: str, want: str, tmp_path: Path) -> None:
    (document,) = read_documents([write(tmp_path, JOB.replace("name: a", f"name: {name}"))])

    assert document.name == want
