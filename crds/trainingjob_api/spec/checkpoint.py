"""The checkpoint section: saves, retention, snapshots, copies, initial parameters and exports."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import (
    Duration,
    Secret,
    SecretVariable,
    ShortName,
    StoreUri,
    Strict,
)
from trainingjob_api.meta import INITIALIZATION, PODS, STORAGE, Example, Live, Unit, cel_rule
from trainingjob_api.shares import MAX_STEPS
from trainingjob_api.spec.hub import Repository, Revision


def _is_unset(value: object) -> bool:
    return value is None


class Save(Strict):
    """When to save."""

    every_steps: Annotated[int, Field(ge=1, le=100_000_000), Unit("optimizer steps"), Example(100)] = Field(
        default=500, description="Steps between two saves. The last step and every planned change are saved too."
    )
    every: Annotated[Duration | None, Example("15m")] = Field(
        default=None,
        description="Longest time between two saves, in addition to `everySteps`. Unset: only the number of steps "
        "decides.",
    )


class KeepBest(Strict):
    """The steps with the lowest loss on a held-out text."""

    evaluation: Annotated[ShortName, Example("held-out")] = Field(
        description="Name of the evaluation whose loss ranks the steps."
    )
    count: Annotated[int, Field(ge=1, le=100), Unit("checkpoints"), Example(1)] = Field(
        default=1, description="Number of steps to keep, those with the lowest loss."
    )


class KeepStage(Strict):
    """Range of steps in which multiples of a number are kept."""

    every: Annotated[int, Field(ge=1, le=MAX_STEPS), Unit("optimizer steps"), Example(1000)] = Field(
        description="Keeps every checkpoint of the stage whose step is a multiple of this number."
    )
    until: Annotated[Annotated[int, Field(ge=1, le=MAX_STEPS)] | None, Unit("optimizer step"), Example(10_000)] = Field(
        default=None,
        description="Last step of the stage; the next stage begins after it. Unset: the end of training, for the last "
        "stage only.",
    )


class Keep(Strict):
    """Checkpoint retention."""

    last: Annotated[int, Field(ge=1, le=1000), Unit("checkpoints"), Example(3)] = Field(
        default=3, description="Number of newest checkpoints to keep."
    )
    stages: tuple[KeepStage, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=8,
        description="Ranges of steps in which multiples of a number are kept, in ascending order. Unset: no such "
        "checkpoints are kept.",
        exclude_if=_is_unset,  # an agent before 0.1 refuses a world with a field that it does not know
    )
    best: KeepBest | None = Field(
        default=None,
        description="Keeps the steps with the lowest evaluation loss; such a step is saved right after its "
        "evaluation. Unset: evaluations do not affect retention.",
    )

    def keeps_in_stage(self, step: int) -> bool:
        """Return whether a stage keeps a step, however many newer checkpoints exist."""
        stages = (stage for stage in self.stages or () if stage.until is None or step <= stage.until)
        stage = next(stages, None)
        return stage is not None and step % stage.every == 0


SnapshotMedium = Literal["memory", "disk"]
MEMORY: SnapshotMedium = "memory"
DISK: SnapshotMedium = "disk"


class Snapshots(Strict):
    """Snapshots of the state on its hosts. They survive the program, but not its pod."""

    medium: Annotated[SnapshotMedium, Example(DISK)] = Field(
        default=MEMORY,
        description="Place on each host: its `memory`, or the `disk` of its node that holds `emptyDir` volumes. On "
        "disk, memory holds one snapshot while it is written.",
        exclude_if=lambda medium: medium == MEMORY,  # an agent before 0.1 refuses a field that it does not know
    )
    every_steps: Annotated[Annotated[int, Field(ge=1, le=100_000_000)] | None, Unit("optimizer steps"), Example(10)] = (
        Field(
            default=None,
            description="Steps between two snapshots. Unset: chosen by the plan to cost 0.1 % to 1 % of the time, and "
            "raised if hosts measure more.",
        )
    )


class Backup(Strict):
    """Copies of checkpoints on a second store, which is slower and survives a loss of the first."""

    uri: Annotated[StoreUri, Example("/archive/run")] = Field(
        description="Folder of this job in a bucket, such as `s3://archive/run`, or on another volume of "
        "`runtime.volumes`, at least two levels deep. All hosts must see the same files there."
    )
    every: Annotated[Duration, Example("1h")] = Field(
        default="1h",
        description="Time between the starts of two copies. The first step of each world and the last step of the "
        "job are copied too.",
    )
    keep: Annotated[int, Field(ge=1, le=1000), Unit("copies"), Example(3)] = Field(
        default=3, description="Number of newest copies to keep."
    )


class HuggingFaceSource(Strict):
    """Published weights in the format of Hugging Face, as `transformers` saves them: a folder, or a repository."""

    path: Annotated[StoreUri | None, Example("/models/Llama-3.1-8B")] = Field(
        default=None,
        description="Folder on a volume of `runtime.volumes` or in a bucket, with `config.json` and "
        "`model.safetensors` or the files of an index. It is only read.",
    )
    repository: Annotated[Repository | None, Example("meta-llama/Llama-3.1-8B")] = Field(
        default=None,
        description="Repository of the hub, or of the mirror in the variable `HF_ENDPOINT`. It is downloaded below "
        "`checkpoint.uri`, and deleted when the job resumes from its own checkpoint.",
    )
    revision: Annotated[Revision | None, Example("0e9e39f249a16976918f6564b8830bc894c89659")] = Field(
        default=None, description="Branch, tag or commit of the repository. Unset: `main`."
    )
    token: Annotated[Secret | None, SecretVariable("HF_TOKEN")] = Field(
        default=None,
        description="Access token for a private or gated repository. The pods get it as the variable `HF_TOKEN`.",
    )

    cel_rules = (
        cel_rule("has(self.path) != has(self.repository)", "must have exactly one of `path` and `repository`."),
        cel_rule("!has(self.revision) || has(self.repository)", "must not be set without `repository`.", "revision"),
        cel_rule("!has(self.token) || has(self.repository)", "must not be set without `repository`.", "token"),
    )


class AdapterSource(Strict):
    """LoRA adapters in the format of PEFT: a folder, or a repository."""

    path: Annotated[StoreUri | None, Example("/models/adapter")] = Field(
        default=None,
        description="Folder on a volume of `runtime.volumes` or in a bucket, with `adapter_config.json` and "
        "`adapter_model.safetensors`. It is only read.",
    )
    repository: Annotated[Repository | None, Example("tloen/alpaca-lora-7b")] = Field(
        default=None,
        description="Repository of the hub, downloaded as the initial weights are. A private one needs the variable "
        "`HF_TOKEN`.",
        exclude_if=_is_unset,  # as for `huggingFace`
    )
    revision: Annotated[Revision | None, Example("0e9e39f249a16976918f6564b8830bc894c89659")] = Field(
        default=None,
        description="Branch, tag or commit of the repository. Unset: `main`.",
        exclude_if=_is_unset,  # as for `huggingFace`
    )

    cel_rules = (
        cel_rule("has(self.path) != has(self.repository)", "must have exactly one of `path` and `repository`."),
        cel_rule("!has(self.revision) || has(self.repository)", "must not be set without `repository`.", "revision"),
    )

    @property
    def name(self) -> str:
        """Return the folder or repository in messages. Validation requires one of them."""
        return self.path or self.repository or ""


class InitializeFrom(Strict):
    """Initial parameters of a job without own checkpoints: from another job's checkpoint, or published weights."""

    uri: Annotated[StoreUri | None, Example("/shared/base")] = Field(
        default=None,
        description="Folder that was `checkpoint.uri` or `backup.uri` of the source job, on a volume or in a bucket. "
        "It is only read.",
    )
    step: Annotated[Annotated[int, Field(ge=1, le=100_000_000)] | None, Unit("optimizer steps"), Example(5000)] = Field(
        default=None, description="Checkpoint step to load, with `uri`. Unset: the newest one that passes verification."
    )
    hugging_face: HuggingFaceSource | None = Field(
        default=None,
        description="Published weights instead of another job's checkpoint; `trainingjob import` prints their `model` "
        "section.",
        exclude_if=_is_unset,  # an agent before 0.1 refuses a world with a field that it does not know
    )
    adapter: AdapterSource | None = Field(
        default=None,
        description="Initial adapters of `spec.lora`, beside the initial parameters. Unset: adapters without effect.",
        exclude_if=_is_unset,  # as for `huggingFace`
    )
    allow_partial: Annotated[bool, Example(False)] = Field(
        default=False,
        description="Initializes parameters randomly if the source lacks them. By default both models must have "
        "the same parameters; another shape is always rejected.",
    )

    cel_rules = (
        cel_rule("has(self.uri) != has(self.huggingFace)", "must have exactly one of `uri` and `huggingFace`."),
        cel_rule("!has(self.step) || has(self.uri)", "must not be set without `uri`.", "step"),
    )


AdapterFormat = Literal["merged", "peft"]


class HuggingFaceExport(Strict):
    """Folders of trained weights that `transformers` and vLLM load."""

    uri: Annotated[StoreUri, Example("/shared/exported")] = Field(
        description="Folder on a writable volume, at least two levels deep, or in a bucket. Files in it are replaced."
    )
    when: Annotated[Literal["end", "kept"] | None, Example("kept")] = Field(
        default=None,
        description="Exported steps: the last one (`end`), or each kept checkpoint, in a folder below `uri` (`kept`). "
        "Unset: `end`.",
        exclude_if=_is_unset,  # as for `huggingFace`
    )
    dtype: Annotated[Literal["float32", "bfloat16", "float16"] | None, Example("bfloat16")] = Field(
        default=None, description="Format of the exported numbers. Unset: that of `precision.params`."
    )
    adapter: Annotated[AdapterFormat | None, Example("merged")] = Field(
        default=None,
        description="Export of the adapters of `spec.lora`: `merged` adds them to the matrices of the model, `peft` "
        "writes them alone in the format of PEFT. Unset: `merged`.",
        exclude_if=_is_unset,  # as for `huggingFace`
    )


class Export(Strict):
    """Weights that the job writes in formats of other programs."""

    hugging_face: HuggingFaceExport = Field(
        description="Safetensors files with `config.json`, and the tokenizer and the files of the initial weights."
    )


class Restore(Strict):
    """How a world reads a saved step from storage."""

    broadcast_from: Annotated[Literal["oneReplica"], Example("oneReplica")] = Field(
        description="Hosts that read for all: `oneReplica` reads once along the `data` axis and broadcasts over the "
        "network. This relieves the storage."
    )


class Checkpoint(Strict):
    """Checkpoint storage. All hosts must see the same files there."""

    uri: Annotated[StoreUri, Example("/shared/run"), STORAGE] = Field(
        description="Folder of this job on shared storage that `runtime.volumes` mounts, at least two levels deep, or "
        "in a bucket, such as `gs://runs/run`."
    )
    save: Annotated[Save, Live(in_world=True)] = Field(default=Save(), description="Save interval of checkpoints.")
    keep: Annotated[Keep, Live(in_world=True)] = Field(default=Keep(), description="Checkpoint retention.")
    fail_after: Annotated[Duration, Example("1h"), Live()] = Field(
        default="1h",
        description="Time for which saves may fail in a row before the job fails. Until then training continues, "
        "saves are retried, and the condition Degraded is true.",
    )
    snapshots: Annotated[Snapshots | None, PODS] = Field(
        default=None,
        description="Snapshots in host memory, from which a smaller world resumes. Unset: no snapshots.",
    )
    restore: Annotated[Restore | None, PODS] = Field(
        default=None,
        description="Restore mode of a world that starts. Unset: each host reads its own part.",
    )
    backup: Annotated[Backup | None, PODS] = Field(
        default=None,
        description="Copies of checkpoints on a second store, from which training resumes if `uri` lost them. Unset: "
        "no copies.",
    )
    initialize_from: Annotated[InitializeFrom | None, INITIALIZATION] = Field(
        default=None,
        description="Checkpoint of another job, or published weights, that provide the initial parameters, until this "
        "job has its own checkpoint. Unset: random initial parameters.",
    )
    export: Annotated[Export | None, PODS] = Field(
        default=None,
        description="Weights for other programs. Unset: none; `trainingjob export` writes those of a checkpoint.",
        exclude_if=_is_unset,  # as for `stages`
    )
    takeover: Annotated[bool, Example(False), STORAGE] = Field(
        default=False,
        description="Takes ownership of the folder and resumes from the checkpoints of another job in it. By default "
        "a folder of another job is rejected.",
    )
