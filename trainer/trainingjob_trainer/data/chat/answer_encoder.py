"""Documents with answers, as tokens with loss weights: conversations, completions, and pairs of answers."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import batched
from typing import Any

import numpy as np

from trainingjob_api.protocol import FailureReason
from trainingjob_api.spec.data import TextSource
from trainingjob_api.spec.job import TrainingJobSpec
from trainingjob_api.spec.objective import DEFAULT_TYPE, Objective
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.chat.answer_weights import MarkedText
from trainingjob_trainer.data.chat.chat_template import ChatTemplate, ChatTemplateError, Tools
from trainingjob_trainer.data.sources.records import CHOSEN, COMPLETION, MESSAGES, PROMPT, REJECTED, TOOLS
from trainingjob_trainer.data.sources.source_files import plural
from trainingjob_trainer.data.tokenizers import DocumentEncoder, EncodedDocument, WeighedDocument
from trainingjob_trainer.huggingface.tokenizer_files import TemplateFile, read_chat_template
from trainingjob_trainer.runtime.errors import TrainingError


class AnswerEncoder:
    """Encodes records with answers. Fine-tuning cuts records longer than a sequence, and skips those without loss.

    A pair of answers is two documents that follow each other. It is skipped as a whole.

    Raises:
        TrainingError: the chat template cannot be read, or is not valid.
    """

    def __init__(self, encoder: DocumentEncoder, spec: TrainingJobSpec, sources: Sequence[TextSource]) -> None:
        objective = spec.objective or Objective()
        self._encoder = encoder
        self.masks_prompts = objective.masks_prompts
        self.has_pairs = objective.sequences_per_example > 1
        self._max_tokens = spec.training.sequence_length + 1 if objective.type != DEFAULT_TYPE else None
        self._template_error: TrainingError | None = None
        has_messages = any(source.messages for source in sources)
        self._file = read_chat_template(spec.tokenizer) if has_messages else self._find_template(spec.tokenizer)
        self._template = parse_template(self._file, encoder) if self._file else None
        self.counts: Counter[str] = Counter()
        """Documents, and those of them that were cut or skipped."""
        self.key: dict[str, Any] = {"masksPrompts": self.masks_prompts, "cuts": self._max_tokens is not None}
        """What decides the tokens beside documents and tokenizer: part of the name of a dataset."""
        if self.has_pairs:
            self.key["pairs"] = True
        if self._file:
            self.key["template"] = hashlib.sha256(self._file.source.encode()).hexdigest()
            self.key["specialTokens"] = encoder.special_tokens

    def encode_documents(self, documents: Iterable[bytes], name: str) -> Iterator[EncodedDocument]:
        """Yield the tokens of each document of `make_document`, in order. Messages contain `name`, the file.

        Raises:
            TrainingError: the template does not render a conversation, or the tokenizer cannot encode it.
        """
        marked = self._encoder.encode_marked(self._mark_each(documents, name), name)
        for example in batched(marked, 2 if self.has_pairs else 1):
            self.counts["documents"] += 1
            self.counts["cut"] += any(self._is_cut(document) for document in example)
            ids = [document.ids[: self._max_tokens] for document in example]
            weights = [document.loss_weights[: self._max_tokens] for document in example]
            if not self.masks_prompts:
                yield from map(EncodedDocument, ids)
            elif _have_loss(ids, weights):
                yield from map(EncodedDocument, ids, weights)
            else:
                self.counts["skipped"] += 1

    def _is_cut(self, document: WeighedDocument) -> bool:
        return self._max_tokens is not None and len(document.ids) > self._max_tokens

    def list_warnings(self, counts: Counter[str]) -> list[str]:
        """Return warnings about documents that were cut or skipped: those of this object, or of several added."""
        warnings, noun = [], "pair" if self.has_pairs else "document"
        if counts["skipped"]:
            reason = "an answer has no token" if self.has_pairs else "no token of an answer is"
            equal = ", or both answers are equal" if self.has_pairs else ""
            warnings.append(
                f"{plural(counts['skipped'], noun)} of {counts['documents']:,} skipped: {reason} in the first "
                f"`training.sequenceLength` tokens{equal}."
            )
        if counts["cut"]:
            warnings.append(
                f"{plural(counts['cut'], noun)} of {counts['documents']:,} longer than a sequence: only the first "
                "`training.sequenceLength` tokens are trained on."
            )
        return warnings

    def _find_template(self, tokenizer: Tokenizer) -> TemplateFile | None:  # None: there is none
        """Return the chat template that pairs have if they are conversations. An error counts once there is one."""
        try:
            return read_chat_template(tokenizer) if self.has_pairs else None
        except TrainingError as error:
            self._template_error = error
            return None

    def _mark_each(self, documents: Iterable[bytes], name: str) -> Iterator[MarkedText]:
        for number, document in enumerate(documents, 1):
            record = json.loads(document)
            if CHOSEN in record:
                yield from self._mark_pair(record, f"pair {number} of {name}")
            elif MESSAGES in record:
                yield self._render(record[MESSAGES], f"conversation {number} of {name}", record.get(TOOLS))
            else:
                yield _mark_completion(record[PROMPT], record[COMPLETION])

    def _mark_pair(self, record: Mapping[str, Any], where: str) -> Iterator[MarkedText]:
        """Yield the chosen and the rejected document. Turns that both share are no answers."""
        answers = record[CHOSEN], record[REJECTED]
        if isinstance(record[CHOSEN], str):
            chosen, rejected = (_mark_completion(record.get(PROMPT, ""), answer) for answer in answers)
        else:
            chosen, rejected = (self._render([*record.get(PROMPT, ()), *answer], where) for answer in answers)
        both = set(chosen.answers) & set(rejected.answers)
        shared = {(begin, end) for begin, end in both if chosen.text[:end] == rejected.text[:end]}
        for document in (chosen, rejected):
            yield document._replace(answers=[span for span in document.answers if span not in shared])

    def _render(self, messages: Any, where: str, tools: Tools = None) -> MarkedText:
        if self._file is None or self._template is None:
            raise self._template_error or TrainingError(
                FailureReason.DATA,
                f"must be set: {where} holds conversations. Set `path` to a Jinja file in the pod, or set `type: "
                "huggingFace` and the path of a model's folder.",
                path="spec.tokenizer.chatTemplate",
                value=None,
            )
        try:
            if not self.masks_prompts:
                return MarkedText(self._template.render(messages, tools), (), is_bounded=False)
            return MarkedText(*self._template.render_with_answers(messages, tools), is_bounded=False)
        except ChatTemplateError as error:
            raise self._file.error(f"{where}: the template {error}.") from error


def _have_loss(ids: Sequence[np.ndarray], weights: Sequence[np.ndarray]) -> bool:
    """Return whether an example is trained on. Its sequences are of a document, or of two answers, which differ."""
    if not all(loss_weights[1:].any() for loss_weights in weights):  # the first token is not predicted
        return False
    first, *others = ids
    return not any(np.array_equal(first, other) for other in others)


def _mark_completion(prompt: str, completion: str) -> MarkedText:
    return MarkedText(prompt + completion, [(len(prompt), len(prompt + completion))], is_bounded=True)


def parse_template(file: TemplateFile, encoder: DocumentEncoder) -> ChatTemplate:
    """Return the template of a file.

    Raises:
        TrainingError: it is not valid.
    """
    try:
        return ChatTemplate(file.source, encoder.special_tokens)
    except ChatTemplateError as error:
        raise file.error(f"{error}.") from error
