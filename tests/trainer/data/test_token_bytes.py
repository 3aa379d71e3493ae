"""Bytes of each token: together they are the bytes of the text."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests.support.trainer.texts import grow, index_of, make_tokenizer, use
from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_trainer.data.token_bytes import count_token_bytes
from trainingjob_trainer.data.tokenizers import DocumentEncoder

TEXT = "Grüße, naïve 日本語 reader: 3.14 is 🥧!\n\tand  two   spaces"


def train_byte_level() -> tokenizers.Tokenizer:
    """Return a tokenizer as those of GPT-2, Llama 3 and Qwen."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    tokenizer.add_tokens(["naïve"])
    return tokenizer


def make_sentencepiece() -> tokenizers.Tokenizer:
    """Return a tokenizer as those of Llama 2 and Gemma: a space is ▁, and bytes stand for unknown characters."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁Gre:, daesipcvtow.143", "▁r", "▁re"]
    vocab = {word: place for place, word in enumerate(words)}
    model = models.BPE(vocab, [("▁", "r"), ("▁r", "e")], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def test_a_byte_level_tokenizer_is_exact() -> None:
    tokenizer = train_byte_level()
    numbers, ids = count_token_bytes(tokenizer), tokenizer.encode(TEXT).ids

    assert any(numbers[ids] > 2)
    assert numbers[ids].sum() == len(TEXT.encode())
    assert numbers[tokenizer.token_to_id("naïve")] == 6


def test_a_vocabulary_of_sentencepiece_is_exact_but_for_the_space_that_it_puts_first() -> None:
    tokenizer = make_sentencepiece()
    numbers, ids = count_token_bytes(tokenizer), tokenizer.encode(TEXT).ids

    assert numbers[ids].sum() == len(TEXT.encode()) + 1
    assert numbers[tokenizer.token_to_id("▁re")] == 3
    assert numbers[tokenizer.token_to_id("<0xF0>")] == 1


def test_words_count_with_the_space_before_them(tmp_path: Path) -> None:
    numbers = count_token_bytes(make_tokenizer(tmp_path / "t.json", "the", "cäts", "<unk>", special=("<end>",)))

    assert numbers.tolist() == [4, 6, 0, 0]


def test_special_tokens_have_no_bytes() -> None:
    tokenizer = train_byte_level()

    assert count_token_bytes(tokenizer)[tokenizer.token_to_id("<|end|>")] == 0


def test_a_tokenizer_of_special_tokens_alone_has_no_bytes(tmp_path: Path) -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({}, unk_token="<unk>"))
    tokenizer.add_special_tokens(["<unk>", "<end>"])

    assert count_token_bytes(tokenizer).tolist() == [0, 0]


def test_bytes_as_tokens_are_a_byte_each_and_the_end_has_none() -> None:
    numbers = DocumentEncoder(Tokenizer(), 272).count_token_bytes()

    assert (len(numbers), numbers.sum(), numbers[256]) == (257, 256, 0)


@pytest.mark.parametrize("kind", ["byte", "tokenizers"])
def test_a_dataset_holds_the_bytes_of_its_tokens(kind: str, tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "the cat sat the cat sat"})
    make_tokenizer(tmp_path / "t.json", "the", "cat", "sat", "<unk>")
    dataset = index_of(tmp_path, **(use(tmp_path / "t.json") if kind == "tokenizers" else {})).train

    assert dataset.count_bytes(np.asarray(dataset.tokens)).sum() == (24 if kind == "tokenizers" else 23)


def test_a_dataset_of_an_older_trainer_has_no_bytes(tmp_path: Path) -> None:
    grow(tmp_path / "text", **{"a.txt": "the cat sat the cat sat"})
    index_of(tmp_path)
    (description,) = (tmp_path / "checkpoints/data").glob("*/index.json")
    description.write_text(description.read_text().replace('"numIds": 257', '"numIds": 0'))
    dataset = index_of(tmp_path).train

    assert dataset.token_bytes is None
    assert dataset.count_bytes(np.asarray(dataset.tokens)).sum() == 0
