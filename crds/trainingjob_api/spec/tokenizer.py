"""The tokenizer section."""

from typing import Annotated, Literal

from pydantic import Field

from trainingjob_api.base import TEMPLATE_PATH, TOKENIZER_PATH, Strict
from trainingjob_api.meta import Example, Pattern, cel_rule
from trainingjob_api.notation import add_slash
from trainingjob_api.spec.hub import HubTokenizer

TokenizerType = Literal["byte", "tokenizers", "huggingFace", "sentencePiece"]
BYTE: TokenizerType = "byte"
TOKENIZERS: TokenizerType = "tokenizers"
HUGGING_FACE: TokenizerType = "huggingFace"
SENTENCE_PIECE: TokenizerType = "sentencePiece"
SpecialToken = Annotated[str, Field(min_length=1, max_length=64)]


class ChatTemplate(Strict):
    """Jinja template that renders a conversation as text."""

    path: Annotated[
        str,
        Pattern(
            TEMPLATE_PATH,
            "an absolute path or a URI of a .jinja or .json file, such as /data/chat_template.jinja",
            add_slash,
            is_path=True,
        ),
        Field(max_length=1024),
        Example("/data/chat_template.jinja"),
    ] = Field(
        description="Absolute path in the pod, or `gs://` or `s3://` URI, of the template. In a JSON file, such as "
        "tokenizer_config.json, the field `chat_template` holds it."
    )


class Tokenizer(Strict):
    """How text becomes token ids."""

    type: Annotated[TokenizerType, Example("tokenizers")] = Field(
        default=BYTE,
        description="Kind of tokenizer: `byte` maps bytes to ids 0 to 255 and ends documents with 256. `tokenizers` "
        "reads a tokenizer.json, `sentencePiece` a tokenizer.model, `huggingFace` a model's folder with tokenizer.json "
        "and chat template.",
    )
    path: Annotated[
        Annotated[
            str,
            Pattern(
                TOKENIZER_PATH,
                "an absolute path such as /data/tokenizer.json, or a URI such as gs://bucket/tokenizer.json",
                add_slash,
                is_path=True,
            ),
            Field(max_length=1024),
        ]
        | None,
        Example("/data/tokenizer.json"),
    ] = Field(
        default=None,
        description="Absolute path in the pod, or `gs://` or `s3://` URI, of the file for `tokenizers` and "
        "`sentencePiece`, or of the folder for `huggingFace`.",
    )
    hugging_face: HubTokenizer | None = Field(
        default=None,
        description="Repository from which `type: huggingFace` downloads its files. Unset: they are in `path`.",
        exclude_if=lambda repository: repository is None,  # an agent before 0.1 refuses a field that it does not know
    )
    begin_of_document: Annotated[SpecialToken | None, Example("<s>")] = Field(
        default=None,
        description="Token that begins each document, as the vocabulary spells it. Unset: none, or for `huggingFace` "
        "the token that the folder adds.",
        exclude_if=lambda token: token is None,  # as for `huggingFace`
    )
    end_of_document: Annotated[SpecialToken | None, Example("</s>")] = Field(
        default=None,
        description="Token that ends each document, as the vocabulary spells it. Unset: none, but for `huggingFace` "
        "the `eos_token` of the folder, and for `sentencePiece` that of the model.",
    )
    chat_template: ChatTemplate | None = Field(
        default=None,
        description="Template of conversations. Unset: for `huggingFace` that of the folder, otherwise none.",
        exclude_if=lambda template: template is None,  # as for `huggingFace`
    )

    cel_rules = (
        cel_rule(
            "self.type == 'byte' || has(self.path) || has(self.huggingFace)",
            "must be set with a type other than `byte`. Write the absolute path of its file, or of a "
            "model's folder, in the pod.",
            "path",
        ),
        cel_rule(
            "!has(self.huggingFace) || self.type == 'huggingFace'",
            "must not be set with a type other than `huggingFace`.",
            "huggingFace",
        ),
        cel_rule(
            "!has(self.huggingFace) || !has(self.path)",
            "must not be set beside `path`: the files are in one of the two.",
            "huggingFace",
        ),
        *(
            cel_rule(f"self.type != 'byte' || !has(self.{field})", "must not be set with `type: byte`.", field)
            for field in ("path", "beginOfDocument", "endOfDocument")
        ),
    )

    @property
    def may_begin_documents(self) -> bool:
        """Return whether a token may begin each document: only hosts can read the folder of `huggingFace`."""
        return self.begin_of_document is not None or self.type == HUGGING_FACE
