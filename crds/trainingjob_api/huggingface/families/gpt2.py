"""GPT-2: layer norms, learned positions, biases, and matrices that are stored as [inputs, outputs]."""

from trainingjob_api.huggingface.config_fields import Field, Fixed, Option, Section, Unset
from trainingjob_api.huggingface.family import Family
from trainingjob_api.huggingface.rule import Rule

LAYER = "transformer.h.{layer}."


def _default_width(section: Section) -> None:
    """Set the width of the MLP that a `config.json` leaves out."""
    if isinstance(width := section["embedDim"], int):  # the model rejects others
        section.setdefault("mlpDim", 4 * width)


GPT2 = Family(
    model_type="gpt2",
    architecture="GPT2LMHeadModel",
    rules=(
        Rule("transformer.wte.weight", "embedding", "v d -> v d"),
        Rule("transformer.wpe.weight", "positions", "p d -> p d"),
        Rule("transformer.ln_f.weight", "norm.scale", "d -> d"),
        Rule("transformer.ln_f.bias", "norm.bias", "d -> d"),
        Rule("lm_head.weight", "head", "v d -> d v"),
        Rule(LAYER + "ln_1.weight", "attention_norm.scale", "d -> d"),
        Rule(LAYER + "ln_1.bias", "attention_norm.bias", "d -> d"),
        Rule(LAYER + "ln_2.weight", "mlp_norm.scale", "d -> d"),
        Rule(LAYER + "ln_2.bias", "mlp_norm.bias", "d -> d"),
        *(
            rule
            for part, name in enumerate(("query", "key", "value"))
            for rule in (
                Rule(LAYER + "attn.c_attn.weight", f"attention.{name}", f"d ({part}/3 h k) -> d h k"),
                Rule(LAYER + "attn.c_attn.bias", f"attention.{name}_bias", f"({part}/3 h k) -> h k"),
            )
        ),
        Rule(LAYER + "attn.c_proj.weight", "attention.out", "(h k) d -> h k d"),
        Rule(LAYER + "attn.c_proj.bias", "attention.out_bias", "d -> d"),
        Rule(LAYER + "mlp.c_fc.weight", "mlp.up", "d f -> d f"),
        Rule(LAYER + "mlp.c_fc.bias", "mlp.up_bias", "f -> f"),
        Rule(LAYER + "mlp.c_proj.weight", "mlp.down", "f d -> f d"),
        Rule(LAYER + "mlp.c_proj.bias", "mlp.down_bias", "d -> d"),
    ),
    fields=(
        Field("vocab_size", "vocabSize"),
        Field("n_embd", "embedDim"),
        Field("n_inner", "mlpDim", Unset()),
        Field("n_layer", "numLayers"),
        Field("n_head", "numHeads"),
        Field("n_positions", "maxPositions"),
        Field("layer_norm_epsilon", "norm.epsilon", 1e-5),
        Field("tie_word_embeddings", "tieEmbeddings", default=True),
        Field("initializer_range", "init.std", 0.02),
        Field("activation_function", "mlp.activation", "gelu_new", {"gelu_new": "geluTanh", "gelu": "gelu"}),
        Fixed("scale_attn_by_inverse_layer_idx", value=False, default=False),
        Fixed("scale_attn_weights", value=True, default=True),
        Fixed("add_cross_attention", value=False, default=False),
        Option("norm.type", "layer"),
        Option("positions", "learned"),
        Option("mlp.gated", value=False),
        Option("mlp.bias", value=True),
        Option("attention.bias", ("query", "key", "value", "out")),
    ),
    optional_prefix="transformer.",
    derived=(".attn.bias", ".attn.masked_bias"),
    finish=_default_width,
)
