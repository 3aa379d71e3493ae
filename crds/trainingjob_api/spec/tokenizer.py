"""The tokenizer section."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import Strict
from trainingjob_api.meta import Example, Pattern, cel_rule
from trainingjob_api.notation import add_slash


class Tokenizer(Strict):
    """How text becomes token ids."""

    type: Annotated[Literal["byte", "tokenizers"], Example("tokenizers")] = Field(
        default="byte",
        description="Kind of tokenizer: `byte` maps bytes to ids 0 to 255 and ends documents with 256. `tokenizers` "
        "reads a tokenizer.json file.",
    )
    path: Annotated[
        Annotated[
            str,
            Pattern(r"^/.*$", "an absolute path such as /data/tokenizer.json", add_slash, is_path=True),
            Field(max_length=1024),
        ]
        | None,
        Example("/data/tokenizer.json"),
    ] = Field(default=None, description="Absolute path in the pod of a tokenizer.json file, for `tokenizers`.")
    end_of_document: Annotated[Annotated[str, Field(min_length=1, max_length=64)] | None, Example("</s>")] = Field(
        default=None, description="Token that ends each document, as the vocabulary spells it, for `tokenizers`."
    )

    cel_rules = (
        cel_rule(
            "self.type != 'tokenizers' || has(self.path)",
            "must be set with `type: tokenizers`. Write the absolute path of a tokenizer.json file in the pod.",
            "path",
        ),
        cel_rule("self.type != 'byte' || !has(self.path)", "must not be set with `type: byte`.", "path"),
        cel_rule(
            "self.type != 'byte' || !has(self.endOfDocument)", "must not be set with `type: byte`.", "endOfDocument"
        ),
    )
