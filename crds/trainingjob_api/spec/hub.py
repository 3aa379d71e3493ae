"""Repositories of the Hugging Face hub: their names, and data sets as sources of text."""

from typing import Annotated

from pydantic import Field

from trainingjob_api.base import Secret, SecretVariable, Strict
from trainingjob_api.meta import Example, Pattern

_PART = "[A-Za-z0-9][A-Za-z0-9._-]*"
DEFAULT_REVISION = "main"
DEFAULT_SPLIT = "train"


def _without_address(text: str) -> str:
    return text.removeprefix("https://huggingface.co/").removeprefix("datasets/").strip("/")


REPOSITORY_PATTERN = rf"^{_PART}(/{_PART})?$"
Repository = Annotated[
    str,
    Pattern(REPOSITORY_PATTERN, "a repository such as meta-llama/Llama-3.1-8B", _without_address),
    Field(max_length=193),
]
Revision = Annotated[
    str, Pattern(rf"^{_PART}(/{_PART})*$", "a branch, a tag or a commit such as main"), Field(max_length=250)
]
Split = Annotated[str, Pattern(r"^\w+(\.\w+)*$", "a split such as train or validation"), Field(max_length=128)]


class HubDataset(Strict):
    """Data set of the Hugging Face hub, as files in the format of the source."""

    repository: Annotated[Repository, Example("HuggingFaceFW/fineweb-edu")] = Field(
        description="Data set of the hub, or of the mirror in the variable `HF_ENDPOINT`. Its files are downloaded "
        "below `checkpoint.uri`, and deleted when their tokens are complete."
    )
    revision: Annotated[Revision | None, Example("87f09149ef4734204d70ed1d046ddc9ca3f2b8f9")] = Field(
        default=None,
        description=f"Branch, tag or commit of the repository. Unset: `{DEFAULT_REVISION}`, whose commit is fixed when "
        "the download begins.",
    )
    configuration: Annotated[Annotated[str, Field(min_length=1, max_length=128)] | None, Example("sample-10BT")] = (
        Field(
            default=None,
            description="Configuration (subset) of the data set, as its `README.md` names it. Unset: the default one.",
        )
    )
    split: Annotated[Split | None, Example("validation")] = Field(
        default=None,
        description="Split of the data set, by its `README.md` or else by the names of its files. Unset: "
        f"`{DEFAULT_SPLIT}`.",
    )


class HubTokenizer(Strict):
    """Tokenizer of a model on the Hugging Face hub."""

    repository: Annotated[Repository, Example("meta-llama/Llama-3.1-8B")] = Field(
        description="Model of the hub, or of the mirror in the variable `HF_ENDPOINT`. The files of its tokenizer are "
        "downloaded below `checkpoint.uri`."
    )
    revision: Annotated[Revision | None, Example("0e9e39f249a16976918f6564b8830bc894c89659")] = Field(
        default=None,
        description=f"Branch, tag or commit of the repository. Unset: `{DEFAULT_REVISION}`, whose commit is fixed when "
        "the download begins.",
    )
    token: Annotated[Secret | None, SecretVariable("HF_TOKEN")] = Field(
        default=None,
        description="Access token for a private or gated repository. The pods get it as the variable `HF_TOKEN`.",
    )
