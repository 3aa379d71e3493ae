"""What a host calls the nearest legal value is one: a job with it passes the whole validation."""

import json
import re
from pathlib import Path

import pytest
import tokenizers
import yaml

from trainingjob_api.spec.tokenizer import Tokenizer
from trainingjob_operator.core.validation.validate import validate_job
from trainingjob_trainer.data.tokenizers import DocumentEncoder
from trainingjob_trainer.runtime.errors import TrainingError

EXAMPLES = Path(__file__).parents[3] / "crds/examples"


@pytest.mark.parametrize("example", ["fixed", "elastic", "tpu-v5p-4-slices", "tpu-v5p-experts", "h100-2-nodes"])
@pytest.mark.parametrize("num_ids", [300, 1001, 32_003])
def test_a_vocabulary_that_a_host_suggests_is_legal(example: str, num_ids: int, tmp_path: Path) -> None:
    spec = yaml.safe_load((EXAMPLES / f"{example}.yaml").read_text())["spec"]
    vocab = {f"word-{number}": number for number in range(num_ids)}
    path = tmp_path / "tokenizer.json"
    tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="word-0")).save(str(path))

    with pytest.raises(TrainingError) as raised:
        DocumentEncoder(Tokenizer(type="tokenizers", path=str(path)), vocab_size=num_ids - 1)

    assert raised.value.path == "spec.model.vocabSize"
    values = [json.loads(number) for number in re.findall(r"\d+(?=[;.])", str(raised.value).partition("Nearest")[2])]
    assert values == [num_ids, -(-num_ids // 128) * 128]
    for value in values:
        spec["model"]["vocabSize"] = value
        assert validate_job("demo", spec).problems == ()
