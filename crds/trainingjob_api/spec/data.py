"""The data section: sources of training text."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import SOURCE_PATH, Quantity, Secret, SecretVariable, ShortName, Strict
from trainingjob_api.formats import FORMATS, FormatName, formats_with
from trainingjob_api.globs import MAX_GLOB
from trainingjob_api.meta import NO_UNIT, Example, Pattern, Unit, cel_rule
from trainingjob_api.notation import add_slash
from trainingjob_api.spec.hub import HubDataset
from trainingjob_api.spec.tokenizer import SpecialToken
from trainingjob_api.spec.training import MAX_STEP

Glob = Annotated[str, Field(min_length=1, max_length=MAX_GLOB)]
OnBadRecord = Literal["fail", "skip"]
TEXT: FormatName = "text"
DEFAULT_FORMAT = TEXT
TOKENS: FormatName = "tokens"
SYNTHETIC: FormatName = "synthetic"
DEFAULT_COLUMN = "text"


def _describe_formats() -> str:
    names = ", ".join(f"`{name}` ({row.content})" for name, row in FORMATS.items())
    return f"Format, with its documents: {names}."


def _describe_patterns() -> str:
    others = (
        f"`{row.pattern}` for `{name}`" for name, row in FORMATS.items() if row.pattern and name != DEFAULT_FORMAT
    )
    return f"default {', '.join((f'`{FORMATS[DEFAULT_FORMAT].pattern}`', *others))}"


def _is_unset(value: object) -> bool:
    """Return whether an agent before 0.1, which refuses a field that it does not know, gets a spec without it."""
    return value is None


def _only_for(field: str) -> str:
    *first, last = (f"`{name}`" for name in formats_with(field))
    return f"for {', '.join(first)} and {last} only" if first else f"for {last} only"


SourcePath = Annotated[
    str,
    Pattern(
        SOURCE_PATH,
        "an absolute path such as /data/text, a URI such as gs://bucket/text, or python:SUB",
        add_slash,
        is_path=True,
    ),
    Field(max_length=1024),
]
RecordField = Annotated[str, Field(min_length=1, max_length=128)]


SKIP: OnBadRecord = "skip"


class TokenArrays(Strict):
    """Token ids in files: NumPy arrays of one dimension (.npy), or raw little-endian ids."""

    dtype: Annotated[Literal["uint16", "uint32", "int32"] | None, Example("uint16")] = Field(
        default=None, description="Number format of raw ids. Unset: that of the header of a file."
    )
    end_of_document: Annotated[Annotated[int, Field(ge=0, le=2**31 - 1)] | None, NO_UNIT, Example(50256)] = Field(
        default=None,
        description="Id that ends each document. Unset: a file is one document.",
    )


class Synthetic(Strict):
    """Random token ids, each as frequent as another."""

    tokens: Annotated[int, Field(ge=1, le=1_000_000_000_000), Unit("tokens"), Example(1_000_000)] = Field(
        default=1_000_000, description="Number of tokens. They are repeated, as each text is."
    )
    seed: Annotated[int, Field(ge=0, le=2**31 - 1), NO_UNIT, Example(1)] = Field(
        default=0, description="Seed of the tokens, together with the name of the source."
    )


class TextSource(Strict):
    """Files of one format under one path, or of one data set of the Hugging Face hub."""

    name: Annotated[ShortName, Example("text")] = Field(description="Name of the source in messages and metrics.")
    format: Annotated[FormatName, Example("jsonl")] = Field(default=DEFAULT_FORMAT, description=_describe_formats())
    path: Annotated[SourcePath | None, Example("/data/train")] = Field(
        default=None,
        description="Absolute path in the pod, or `gs://` or `s3://` URI, of a file or a folder, symbolic links "
        "included. `python:SUB` is folder SUB of the image's Python standard library, `python:` all of it.",
    )
    hugging_face: HubDataset | None = Field(
        default=None,
        description="Data set of the Hugging Face hub, instead of `path`.",
        exclude_if=_is_unset,
    )
    pattern: Annotated[Glob | None, Example("**/*.jsonl")] = Field(
        default=None,
        description=f"Glob of files to read, {_describe_patterns()}. `**` matches any number of folders, and "
        "hidden names match only if the pattern names them.",
    )
    exclude: Annotated[tuple[Glob, ...], Example(["*.bak"])] = Field(
        default=(), max_length=16, description="Globs of files to exclude, relative to `path`."
    )
    column: Annotated[RecordField | None, Example("text")] = Field(
        default=None,
        description=f"Field of a record that holds the document, {_only_for('column')}, with dots between nested "
        f"names. Unset: `{DEFAULT_COLUMN}`, but for `arrayRecord` the record itself.",
    )
    messages: Annotated[RecordField | None, Example("messages")] = Field(
        default=None,
        description="Field of a record that holds a conversation: a list of messages with `role` and `content`, "
        f"{_only_for('messages')}.",
        exclude_if=_is_unset,
    )
    tools: Annotated[RecordField | None, Example("tools")] = Field(
        default=None,
        description="Field of a record that holds the tools of `messages` for the chat template, "
        f"{_only_for('tools')}. It holds a list of objects, JSON text of such a list, or null.",
        exclude_if=_is_unset,
    )
    prompt: Annotated[RecordField | None, Example("prompt")] = Field(
        default=None,
        description=f"Field of a record that holds a prompt, {_only_for('prompt')}. The document is the prompt and its "
        "completion, or each of two answers, joined without a separator.",
        exclude_if=_is_unset,
    )
    completion: Annotated[RecordField | None, Example("completion")] = Field(
        default=None,
        description=f"Field of a record that holds the completion of `prompt`, {_only_for('completion')}.",
        exclude_if=_is_unset,
    )
    chosen: Annotated[RecordField | None, Example("chosen")] = Field(
        default=None,
        description=f"Field of a record that holds the preferred answer, {_only_for('chosen')}. It holds text, or a "
        "conversation.",
        exclude_if=_is_unset,
    )
    rejected: Annotated[RecordField | None, Example("rejected")] = Field(
        default=None,
        description=f"Field of a record that holds the other answer, {_only_for('rejected')}. It holds what `chosen` "
        "holds.",
        exclude_if=_is_unset,
    )

    on_bad_record: Annotated[OnBadRecord | None, Example("skip")] = Field(
        default=None,
        description="Reaction to a record without a valid document, "
        f"{_only_for('on_bad_record')}: `fail` fails the job, `skip` omits and reports it. Unset: `fail`.",
        exclude_if=_is_unset,
    )

    tokens: TokenArrays | None = Field(
        default=None,
        description=f"Layout of token ids, {_only_for('tokens')}. Unset: NumPy files, each of which is one document.",
        exclude_if=_is_unset,
    )
    synthetic: Synthetic | None = Field(
        default=None,
        description=f"Random token ids instead of files, {_only_for('synthetic')}. Unset: 1,000,000 tokens.",
        exclude_if=_is_unset,
    )

    cel_rules = (
        cel_rule(
            "self.format == 'synthetic' || has(self.path) != has(self.huggingFace)",
            "must have exactly one of `path` and `huggingFace`.",
        ),
        cel_rule("!has(self.messages) || !has(self.column)", "must not be set together with `messages`.", "column"),
        cel_rule("!has(self.completion) || !has(self.column)", "must not be set together with `completion`.", "column"),
        cel_rule(
            "!has(self.messages) || !has(self.completion)",
            "must not be set together with `completion`.",
            "messages",
        ),
        cel_rule("!has(self.tools) || has(self.messages)", "must not be set without `messages`.", "tools"),
        cel_rule("!has(self.completion) || has(self.prompt)", "must not be set without `prompt`.", "completion"),
        cel_rule(
            "!has(self.prompt) || has(self.completion) || has(self.chosen)",
            "must be set together with `completion`, or with `chosen` and `rejected`.",
            "prompt",
        ),
        cel_rule("has(self.chosen) == has(self.rejected)", "must be set together with `chosen`.", "rejected"),
        cel_rule(
            "!has(self.chosen) || !(has(self.column) || has(self.messages) || has(self.completion))",
            "must not be set together with `column`, `messages` or `completion`.",
            "chosen",
        ),
    )

    @property
    def location(self) -> str:
        """Return the repository or the path of its files, for messages."""
        return self.hugging_face.repository if self.hugging_face else self.path or ""

    @property
    def location_field(self) -> str:
        """Return the field that decides where its files are."""
        if not FORMATS[self.format].has_files:
            return self.format
        return "huggingFace.repository" if self.hugging_face else "path"

    @property
    def glob(self) -> str:
        """Return the pattern of the files to read."""
        return self.pattern or FORMATS[self.format].pattern

    @property
    def has_answers(self) -> bool:
        """Return whether its records have answers: turns of an assistant, completions, or pairs of answers."""
        return self.messages is not None or self.completion is not None or self.has_pairs

    @property
    def has_pairs(self) -> bool:
        """Return whether each record holds a chosen and a rejected answer."""
        return self.chosen is not None


class TrainSource(TextSource):
    """Source of training text."""

    weight: Annotated[Annotated[float, Field(ge=0, le=1e9)] | None, NO_UNIT, Example(0.7)] = Field(
        default=None,
        description="Share of the samples from this source, relative to the other weights. Unset for all sources: each "
        "is read in proportion to its size.",
        exclude_if=lambda weight: weight is None,  # an agent before 0.1 refuses a field it does not know
    )


class WeightPhase(Strict):
    """Weights of the sources from a step on."""

    from_step: Annotated[int, Field(ge=2, le=MAX_STEP), Unit("optimizer steps"), Example(1000)] = Field(
        description="First step with these weights."
    )
    weights: Annotated[dict[ShortName, Annotated[float, Field(ge=0, le=1e9)]], NO_UNIT, Example({"web": 0.7})] = Field(
        min_length=1, max_length=64, description="Weight of each source by name. A source without one is not read."
    )


type PackingType = Literal["concat", "bestFit"]
"""How documents are packed into sequences."""


class Packing(Strict):
    """Packing of documents into sequences, for training and evaluation."""

    type: Annotated[PackingType, Example("bestFit")] = Field(
        default="concat",
        description="Kind of packing: `concat` cuts documents where a sequence is full. `bestFit` cuts only those "
        "longer than a sequence, and fills up sequences with padding.",
    )
    isolate_documents: Annotated[bool | None, Example(True)] = Field(
        default=None,
        description="Tokens attend only to their own document, with positions from 0 in each. Unset: true for "
        "`bestFit`, false for `concat`.",
    )

    cel_rules = (
        cel_rule(
            "self.type != 'bestFit' || !has(self.isolateDocuments) || self.isolateDocuments",
            "must not be false with `type: bestFit`. Remove it, or set `type: concat`.",
            "isolateDocuments",
        ),
    )

    @property
    def isolates(self) -> bool:
        """Return whether tokens attend only to their own document."""
        return self.type == "bestFit" if self.isolate_documents is None else self.isolate_documents


class PrepareResources(Strict):
    """Resources of one pod that tokenizes text. It needs no accelerator."""

    cpu: Annotated[Quantity, Unit("cores"), Example("8")] = Field(
        default="4", description="CPU request and limit in cores. One process tokenizes on each core."
    )
    memory: Annotated[Quantity, Unit("bytes"), Example("16Gi")] = Field(
        default="8Gi", description="Memory request and limit."
    )


class Prepare(Strict):
    """Preparation phase: pods without accelerators tokenize the text before slices are requested."""

    resources: PrepareResources = Field(default=PrepareResources(), description="Resources of each pod.")
    parallelism: Annotated[Annotated[int, Field(ge=1, le=256)], Unit("pods"), Example(4)] = Field(
        default=1, description="Number of pods, which share the files."
    )


class FillInTheMiddle(Strict):
    """Documents whose middle follows their prefix and suffix (arXiv 2207.14255), in training text."""

    share: Annotated[float, Field(gt=0, le=1), Unit("share of the documents"), Example(0.5)] = Field(
        default=0.5, description="Share of the documents whose middle is moved to their end."
    )
    prefix_token: Annotated[SpecialToken, Example("<|fim_prefix|>")] = Field(
        description="Token before the prefix, as the vocabulary spells it."
    )
    suffix_token: Annotated[SpecialToken, Example("<|fim_suffix|>")] = Field(
        description="Token before the suffix, as the vocabulary spells it."
    )
    middle_token: Annotated[SpecialToken, Example("<|fim_middle|>")] = Field(
        description="Token before the middle, as the vocabulary spells it."
    )
    order: Annotated[Literal["psm", "spm", "joint"], Example("psm")] = Field(
        default="joint",
        description="Order of the parts: `psm` is prefix, suffix, middle, and `spm` suffix, prefix, middle. `joint` "
        "takes each for half of these documents.",
    )


class Data(Strict):
    """Training data."""

    train: tuple[TrainSource, ...] = Field(  # no list-map: the order of the list determines the order of the data
        min_length=1,
        max_length=64,
        description="Sources of training text, each read in proportion to its size or weight. Only `seed` and "
        "`shuffle` determine the order.",
    )
    shuffle: Annotated[bool, Example(False)] = Field(
        default=True,
        description="Shuffles the sequences of a source in each epoch. `false` reads them in the order of files and "
        "documents.",
        exclude_if=bool,  # an agent before 0.1 refuses a field it does not know
    )
    temperature: Annotated[Annotated[float, Field(gt=0, le=100)] | None, NO_UNIT, Example(2.0)] = Field(
        default=None,
        description="Divisor of the exponents of weights: above 1, small sources are read more often. Unset: 1.",
        exclude_if=lambda temperature: temperature is None,  # as for `packing`
    )
    weight_schedule: tuple[WeightPhase, ...] = Field(
        default=(),
        max_length=64,
        description="Changes of the weights during training, by step. Each replaces all weights.",
        exclude_if=lambda phases: not phases,
    )
    fill_in_the_middle: FillInTheMiddle | None = Field(
        default=None,
        description="Moves the middle of some documents of training text to their end. Unset: documents stay as they "
        "are.",
        exclude_if=_is_unset,
    )
    token: Annotated[Secret | None, SecretVariable("HF_TOKEN")] = Field(
        default=None,
        description="Access token for private or gated data sets of the hub. The pods get it as the variable "
        "`HF_TOKEN`.",
        exclude_if=_is_unset,
    )
    packing: Packing | None = Field(
        default=None,
        description="Packing of documents into sequences. Unset: they are concatenated, and tokens attend to all "
        "earlier tokens of a sequence.",
        exclude_if=lambda packing: packing is None,  # an agent before 0.1 refuses a field it does not know
    )

    prepare: Prepare | None = Field(
        default=None,
        description="Preparation phase on CPU nodes before slices are requested. Unset: the hosts of the slices "
        "tokenize the text.",
        exclude_if=_is_unset,
    )

    @property
    def is_mixture(self) -> bool:
        """Return whether weights decide how often each source is read, and not its size alone."""
        has_weights = any(source.weight is not None for source in self.train)
        return has_weights or self.temperature is not None or bool(self.weight_schedule)

    @property
    def phase_steps(self) -> tuple[int, ...]:
        """Return the first step of each phase of weights."""
        return (1, *(phase.from_step for phase in self.weight_schedule))

    @property
    def isolated_packing(self) -> PackingType | None:
        """Return how isolated documents are packed. None: tokens attend to all earlier tokens of a sequence."""
        return self.packing.type if self.packing and self.packing.isolates else None

    @property
    def isolates_documents(self) -> bool:
        """Return whether tokens attend only to their own document."""
        return self.isolated_packing is not None
