"""The tokenizer section."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict


class Tokenizer(Strict):
    """How text becomes token ids."""

    type: Literal["byte", "tokenizers"] = Field(
        default="byte",
        description="`byte`: ids 0 to 255 are bytes, 256 ends a document. `tokenizers`: a tokenizer.json file of the "
        "tokenizers library.",
    )
    path: Annotated[str, Field(pattern=r"^/.*$", max_length=1024)] | None = Field(
        default=None, description="The tokenizer.json file, an absolute path in the pod. Only for `tokenizers`."
    )
    end_of_document: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        default=None, description="The token that ends each document, as the vocabulary spells it. For `tokenizers`."
    )
