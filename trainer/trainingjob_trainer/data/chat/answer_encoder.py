"""Documents with answers: conversations, and prompts with their completion, as tokens with loss weights."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import SFT, Objective
from trainingjob_trainer.data.chat.answer_weights import MarkedText
from trainingjob_trainer.data.chat.chat_template import ChatTemplate, ChatTemplateError
from trainingjob_trainer.data.sources.records import COMPLETION, MESSAGES, PROMPT
from trainingjob_trainer.data.sources.source_files import plural
from trainingjob_trainer.data.tokenizers import DocumentEncoder, EncodedDocument
from trainingjob_trainer.huggingface.tokenizer_files import TemplateFile, read_chat_template


class AnswerEncoder:
    """Encodes records with answers. Fine-tuning cuts records longer than a sequence, and skips those without loss.

    Raises:
        TrainingError: the chat template cannot be read, or is not valid.
    """

    def __init__(self, encoder: DocumentEncoder, spec: TrainingJobSpec, *, has_messages: bool) -> None:
        objective = spec.objective or Objective()
        self._encoder = encoder
        self.masks_prompts = objective.masks_prompts
        self._max_tokens = spec.training.sequence_length + 1 if objective.type == SFT else None
        self._file = read_chat_template(spec.tokenizer) if has_messages else None
        self._template = _parse(self._file, encoder) if self._file else None
        self.counts: Counter[str] = Counter()
        """Documents, and those of them that were cut or skipped."""
        self.key: dict[str, Any] = {"masksPrompts": self.masks_prompts, "cuts": self._max_tokens is not None}
        """What decides the tokens beside documents and tokenizer: part of the name of a dataset."""
        if self._file:
            self.key["template"] = hashlib.sha256(self._file.source.encode()).hexdigest()
            self.key["specialTokens"] = encoder.special_tokens

    def encode_documents(self, documents: Iterable[bytes], name: str) -> Iterator[EncodedDocument]:
        """Yield the tokens of each document of `make_document`, in order. Messages contain `name`, the file.

        Raises:
            TrainingError: the template does not render a conversation, or the tokenizer cannot encode it.
        """
        for document in self._encoder.encode_marked(self._mark_each(documents, name), name):
            self.counts["documents"] += 1
            ids, weights = document.ids, document.loss_weights
            self.counts["cut"] += self._max_tokens is not None and len(ids) > self._max_tokens
            ids, weights = ids[: self._max_tokens], weights[: self._max_tokens]
            if not self.masks_prompts:
                yield EncodedDocument(ids)
            elif weights[1:].any():  # the first token is not predicted
                yield EncodedDocument(ids, weights)
            else:
                self.counts["skipped"] += 1

    def list_warnings(self, counts: Counter[str]) -> list[str]:
        """Return warnings about documents that were cut or skipped: those of this object, or of several added."""
        warnings = []
        if counts["skipped"]:
            warnings.append(
                f"{plural(counts['skipped'], 'document')} of {counts['documents']:,} skipped: no token of an answer "
                "is in the first `training.sequenceLength` tokens."
            )
        if counts["cut"]:
            warnings.append(
                f"{plural(counts['cut'], 'document')} of {counts['documents']:,} longer than a sequence: only the "
                "first `training.sequenceLength` tokens are trained on."
            )
        return warnings

    def _mark_each(self, documents: Iterable[bytes], name: str) -> Iterator[MarkedText]:
        for number, document in enumerate(documents, 1):
            record = json.loads(document)
            if MESSAGES in record:
                yield self._render(record[MESSAGES], f"conversation {number} of {name}")
            else:
                begin, text = len(record[PROMPT]), record[PROMPT] + record[COMPLETION]
                yield MarkedText(text, [(begin, len(text))], is_bounded=True)

    def _render(self, messages: Any, where: str) -> MarkedText:
        assert self._file, "the writer requests a template for conversations"  # noqa: S101
        assert self._template  # noqa: S101
        try:
            if not self.masks_prompts:
                return MarkedText(self._template.render(messages), (), is_bounded=False)
            return MarkedText(*self._template.render_with_answers(messages), is_bounded=False)
        except ChatTemplateError as error:
            raise self._file.error(f"{where}: the template {error}.") from error


def _parse(file: TemplateFile, encoder: DocumentEncoder) -> ChatTemplate:
    try:
        return ChatTemplate(file.source, encoder.special_tokens)
    except ChatTemplateError as error:
        raise file.error(f"{error}.") from error
