"""The tokenizer section."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict


class Tokenizer(Strict):
    """How text becomes token ids."""

    type: Literal["byte", "tokenizers"] = Field(
        default="byte",
        description="Kind of tokenizer: `byte` maps bytes to ids 0 to 255 and ends documents with 256. `tokenizers` "
        "reads a tokenizer.json file.",
    )
    path: Annotated[str, Field(pattern=r"^/.*$", max_length=1024)] | None = Field(
        default=None, description="Absolute path in the pod of a tokenizer.json file, for `tokenizers`."
    )
    end_of_document: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="Token that ends each document, as the vocabulary spells it, for `tokenizers`."
    )
