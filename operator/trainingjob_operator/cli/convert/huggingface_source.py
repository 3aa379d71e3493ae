"""A job with the model of a `config.json` from the Hugging Face hub."""

from collections.abc import Mapping
from typing import Any

from trainingjob_api.huggingface.config_fields import Config, ConfigError
from trainingjob_api.huggingface.registry import find_family
from trainingjob_api.huggingface.rope_fields import PARAMETERS, flatten_rope
from trainingjob_operator.cli.convert.draft_job import DraftJob
from trainingjob_operator.cli.convert.placeholders import DEFAULT_LENGTH
from trainingjob_operator.cli.convert.source_rows import (
    ATTENTION_DROPOUT,
    Combined,
    Copy,
    Omit,
    Table,
    Values,
    apply_rows,
)
from trainingjob_operator.cli.errors import CommandError

TEXT = "text_config"
"""The decoder of text in the config of a model that has encoders too."""
TOKENIZER = "ids of tokens belong to the tokenizer"
LIBRARY = "it is for the library that wrote the file"
GENERATION = "it is for the generation of text"
OTHER = "only text is trained"
ROWS: Table = {
    "model_type": Combined(),
    "max_position_embeddings": Combined(),
    "*_token_id": Omit(TOKENIZER),
    "*_token_index": Omit(TOKENIZER),
    **dict.fromkeys(
        ("architectures", "transformers_version", "auto_map", "_name_or_path", "_attn_implementation*", "model_name",
         "return_dict", "output_*", "pretraining_tp", "is_encoder_decoder", "is_decoder", "problem_type", "summary_*",
         "task_specific_params", "finetuning_task", "id2label", "label2id", "name_or_path", "gradient_checkpointing",
         "max_window_layers", "for_llm_compressor", "tokenizer_class", "prefix", "num_labels"),
        Omit(LIBRARY),
    ),
    **dict.fromkeys(("torch_dtype", "dtype"), Omit("`precision` has the formats of the training")),
    **dict.fromkeys(("use_cache", "cache_implementation", "temperature", "top_*", "num_beams"), Omit(GENERATION)),
    **dict.fromkeys(("resid_pdrop", "resid_dropout"), Copy("model.dropout.residual", off=(0, 0.0))),
    **dict.fromkeys(("embd_pdrop", "embedding_dropout"), Copy("model.dropout.embedding", off=(0, 0.0))),
    **dict.fromkeys(("attention_dropout", "attn_pdrop"), Omit(ATTENTION_DROPOUT, off=(0, 0.0))),
    "quantization_config": Omit("parameters are trained in `precision.params`"),
    "num_nextn_predict_layers": Omit("no layer predicts a second token", off=(0,)),
    **dict.fromkeys(
        ("use_sliding_window", "layer_types", "_sliding_window_pattern", "n_group", "topk_group", "hidden_act"),
        Combined(),
    ),
    **dict.fromkeys(
        ("head_dim", "num_key_value_heads", "qk_head_dim"), Omit("`latentAttention` has the widths of its heads")
    ),
    "mlp_bias": Omit("`mlp.bias` adds biases to MLPs", off=(False,)),
    "router_jitter_noise": Omit("routers have no noise", off=(0, 0.0)),
    "reorder_and_upcast_attn": Omit("scores are float32", off=(False,)),
    "use_bidirectional_attention": Omit("attention is causal", off=(False, None)),
    "sliding_window": Omit("a model that does not use its window has none", off=(None,)),
    "*vision*": Omit(OTHER),
    "*audio*": Omit(OTHER),
    "*image*": Omit(OTHER),
    "mm_*": Omit(OTHER),
    **dict.fromkeys(
        ("ep_size", "seq_aux", "aux_loss_alpha", "topk_method", "scoring_func", "moe_layer_freq", "output_router_*"),
        Omit("`experts` has the options of the family"),
    ),
}  # fmt: skip


OMITTED: Mapping[str, Config] = {
    "gemma3_text": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip
"""By type of a model, values that published configs omit, because they are defaults of the library."""


class _RecordingConfig(dict[str, Any]):
    """A config that records which of its keys are read."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        """Return a value, and record its key."""
        self.read.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def _set_init(config: Config, draft: DraftJob) -> None:
    """Set the initial values of matrices, which a family has no field for: they do not change what a model computes."""
    if config.get("initializer_range"):
        draft.set("model.init.matrices.std", config["initializer_range"])
    if config.get("model_type") == "gpt2":
        draft.set("model.init.matrices.scaleByDepth", value=True)


def read_huggingface(values: Values, draft: DraftJob) -> None:
    """Put the model of a `config.json` into a job.

    Raises:
        CommandError: no model section expresses it.
    """
    text = values.get(TEXT)
    config = text if isinstance(text, dict) else values
    config = {**OMITTED.get(str(config.get("model_type")), {}), **config}
    try:
        family = find_family(config)
        recording = _RecordingConfig(flatten_rope(config, by_kind=family.has_local_rope))
        draft.set("model", family.to_section(recording))
    except ConfigError as error:
        raise CommandError(f"{error} The model cannot be converted.") from error
    _set_init(config, draft)
    draft.drop_no_tokens()
    length = config.get("max_position_embeddings", config.get("n_positions", DEFAULT_LENGTH))
    draft.set_placeholder(
        "training.sequenceLength", min(length, DEFAULT_LENGTH), f"the length of a sequence, at most {length}."
    )
    encoders = {key: value for key, value in values.items() if key not in (TEXT, *config)}
    unread = {key: value for key, value in config.items() if key not in recording.read and key != PARAMETERS}
    apply_rows(ROWS, encoders | unread, draft)
