"""The files of a tokenizer: tokenizer.json alone, or a model's folder with special tokens and a chat template."""

import json
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from trainingjob_agent.shared_files import UntrustedFileError, open_linked
from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.tokenizer import HUGGING_FACE, SENTENCE_PIECE, Tokenizer
from trainingjob_trainer.runtime.errors import TrainingError, is_permanent

TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
PIECES_FILE = "tokenizer.model"
TEMPLATE_FILE, TEMPLATE_JSON_FILE = "chat_template.jinja", "chat_template.json"
TEMPLATE_FIELD, DEFAULT_TEMPLATE = "chat_template", "default"
FOLDER_FILES = (TOKENIZER_FILE, CONFIG_FILE, SPECIAL_TOKENS_FILE, TEMPLATE_FILE, TEMPLATE_JSON_FILE)
"""Files of a folder that decide what its tokenizer does."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that `transformers` gives to chat templates."""
BEGIN, END = "bos_token", "eos_token"


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files of a tokenizer hold. `content` is that of its file; None: bytes are ids."""

    content: bytes | None = None
    special_tokens: dict[str, str] = field(default_factory=dict)
    """Special tokens by the names of `transformers`, such as `eos_token`."""
    adds_begin: bool | None = None
    """Whether documents begin with `bos_token`. None: tokenizer.json decides."""


@dataclass(frozen=True)
class TemplateFile:
    """A chat template. `field` is the field of the spec that names its file or folder, and `path` that path."""

    source: str
    field: str
    path: str

    def error(self, message: str, cause: Exception | None = None) -> TrainingError:
        """Return an error about the template. It is not fatal if a volume may recover from the cause."""
        return TrainingError(FailureReason.DATA, message, path=self.field, value=self.path, fatal=_is_fatal(cause))


def read_tokenizer_files(tokenizer: Tokenizer) -> TokenizerFiles:
    """Return the files of a tokenizer, except its chat template.

    Raises:
        TrainingError: a file is missing or cannot be read.
    """
    if tokenizer.path is None:
        return TokenizerFiles()
    if tokenizer.type != HUGGING_FACE:
        given = {BEGIN: tokenizer.begin_of_document, END: tokenizer.end_of_document}
        return TokenizerFiles(_read_tokenizer(tokenizer), {name: token for name, token in given.items() if token})
    if not (folder := Path(tokenizer.path)).is_dir():
        nearest = f" Nearest legal value: {folder.parent}." if folder.is_file() else ""
        raise tokenizer_error(tokenizer, f"must be a folder with {TOKENIZER_FILE} that every host sees.{nearest}")
    config = _read_json(tokenizer, folder / CONFIG_FILE)
    listed = _read_json(tokenizer, folder / SPECIAL_TOKENS_FILE) | config
    tokens = {name: text for name in SPECIAL_TOKENS if (text := _spell_token(listed.get(name)))}
    adds_begin = config.get("add_bos_token")
    return TokenizerFiles(_read_tokenizer(tokenizer), tokens, adds_begin if isinstance(adds_begin, bool) else None)


def read_chat_template(tokenizer: Tokenizer) -> TemplateFile | None:  # None: the tokenizer has no template
    """Return the chat template: that of the spec, else that of the folder.

    Raises:
        TrainingError: the file cannot be read, or holds no template.
    """
    if tokenizer.chat_template is not None:
        path = tokenizer.chat_template.path
        unread = TemplateFile("", "spec.tokenizer.chatTemplate.path", path)
        try:
            text = _read_text(Path(path))
        except OSError as error:
            message = f"the template cannot be read: {error.strerror}. It must be a file that every host sees."
            raise unread.error(message, error) from error
        except UnicodeDecodeError as error:
            raise unread.error(f"must be UTF-8 text, but byte {error.start} is not.") from error
        except UntrustedFileError as error:
            raise unread.error(f"{error}. Write the template into a file.") from error
        source = text if not path.endswith(".json") else _find_template(text)
        if source is None:
            raise unread.error(f"must be a JSON object with the field `{TEMPLATE_FIELD}`, or a .jinja file.")
        return TemplateFile(source, unread.field, path)
    if tokenizer.type == HUGGING_FACE and tokenizer.path is not None:
        return _find_in_folder(tokenizer, Path(tokenizer.path))
    return None


def name_place(tokenizer: Tokenizer) -> tuple[str, str | None]:
    """Return the field of the spec that says where a tokenizer is, and its value."""
    if tokenizer.hugging_face:
        return "spec.tokenizer.huggingFace.repository", tokenizer.hugging_face.repository
    return "spec.tokenizer.path", tokenizer.path


def tokenizer_error(tokenizer: Tokenizer, message: str, cause: Exception | None = None) -> TrainingError:
    """Return the error of a tokenizer that cannot be used. It is not fatal if a volume may recover from the cause."""
    field, value = name_place(tokenizer)
    return TrainingError(FailureReason.DATA, message, path=field, value=value, fatal=_is_fatal(cause))


def _is_fatal(cause: Exception | None) -> bool:
    return not isinstance(cause, OSError) or is_permanent(cause)


def published_name(tokenizer: Tokenizer) -> str:
    """Return the name of the file of a tokenizer in a folder."""
    return PIECES_FILE if tokenizer.type == SENTENCE_PIECE else TOKENIZER_FILE


def list_published_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files that publish a tokenizer in a folder, with their content; empty for bytes.

    Raises:
        OSError: a file cannot be read.
        TrainingError: a file is not of the tokenizer, or the template of the spec cannot be read.
    """
    files: dict[str, bytes] = {}
    if tokenizer.path is not None:
        path = Path(tokenizer.path)
        if tokenizer.type == HUGGING_FACE:
            places = {name: path / name for name in FOLDER_FILES if (path / name).is_file()}
        else:
            places = {published_name(tokenizer): path}
        try:
            files = {name: _read_file(place) for name, place in places.items()}
        except UntrustedFileError as error:
            raise tokenizer_error(tokenizer, f"a file {error}. Copy the file of the tokenizer.", error) from error
    if tokenizer.chat_template is not None and (template := read_chat_template(tokenizer)):
        files[TEMPLATE_FILE] = template.source.encode()
    return files


def _find_in_folder(tokenizer: Tokenizer, folder: Path) -> TemplateFile:
    field, value = name_place(tokenizer)
    place = field, value or ""
    try:
        if (file := folder / TEMPLATE_FILE).is_file():
            return TemplateFile(_read_text(file), *place)
        for name in (TEMPLATE_JSON_FILE, CONFIG_FILE):
            if (file := folder / name).is_file() and (source := _find_template(_read_text(file))):
                return TemplateFile(source, *place)
    except (OSError, ValueError) as error:
        raise tokenizer_error(tokenizer, f"{file.name} cannot be read: {error}.", error) from error
    message = (
        f"has no chat template: neither {TEMPLATE_FILE}, nor `{TEMPLATE_FIELD}` in {CONFIG_FILE}. Set "
        "`spec.tokenizer.chatTemplate.path`, often to the template of the instruction-tuned model."
    )
    raise tokenizer_error(tokenizer, message)


def _find_template(text: str) -> str | None:
    """Return the template of a JSON file; of several, the one named `default`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    found = content.get(TEMPLATE_FIELD) if isinstance(content, dict) else None
    if isinstance(found, list):
        named = {template.get("name"): template.get("template") for template in found if isinstance(template, dict)}
        found = named.get(DEFAULT_TEMPLATE)
    return found if isinstance(found, str) else None


def _read_tokenizer(tokenizer: Tokenizer) -> bytes:
    path = Path(tokenizer.path or "")
    file = path / TOKENIZER_FILE if tokenizer.type == HUGGING_FACE else path
    try:
        return _read_file(file)
    except UntrustedFileError as error:
        raise tokenizer_error(tokenizer, f"{file} {error}. Copy the file of the tokenizer.", error) from error
    except OSError as error:
        if tokenizer.type == HUGGING_FACE:
            message = (
                f"{file} cannot be read: {error.strerror}. Save the tokenizer with `save_pretrained` of its fast class."
            )
            raise tokenizer_error(tokenizer, message, error) from error
        inside = path / published_name(tokenizer)
        nearest = f" Nearest legal value: {inside}." if path.is_dir() and inside.is_file() else ""
        message = (
            f"the tokenizer cannot be read: {error.strerror}. It must be a {published_name(tokenizer)} file that "
            f"every host sees.{nearest}"
        )
        raise tokenizer_error(tokenizer, message, error) from error


def _read_file(file: Path) -> bytes:
    with open_linked(file) as content:
        return content.read()


def _read_text(file: Path) -> str:
    with TextIOWrapper(open_linked(file), "utf-8-sig") as content:
        return content.read()


def _read_json(tokenizer: Tokenizer, file: Path) -> dict[str, Any]:
    """Return the object of a JSON file of a folder; empty if the folder lacks it."""
    try:
        content = json.loads(_read_text(file))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        message = f"{file.name} must be a JSON object, but cannot be read: {error}."
        raise tokenizer_error(tokenizer, message, error) from error
    if not isinstance(content, dict):
        raise tokenizer_error(tokenizer, f"{file.name} must be a JSON object.")
    return content


def _spell_token(written: Any) -> str:
    """Return the text of a special token, which is written plain or as an object with options; empty: none."""
    text = written.get("content") if isinstance(written, dict) else written
    return text if isinstance(text, str) else ""
