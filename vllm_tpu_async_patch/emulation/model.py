"""A model to serve on emulated hosts: a real Llama architecture, tiny, with random weights."""

from __future__ import annotations

import json
import os

VOCABULARY = 512
SPECIAL = ("<pad>", "<s>", "</s>")
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    # Heads of 128 are what the TPU kernels want; two key heads, so that two hosts can share them.
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 128,
    "num_hidden_layers": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
CHAT_TEMPLATE = ("{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n"
                 "{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}")


def write_tiny_model(directory: str) -> None:
    """Write config, weights (about 5 MB) and tokenizer; the same ones every time."""
    os.makedirs(directory, exist_ok=True)
    _write_json(directory, "config.json", CONFIG)
    _write_json(directory, "generation_config.json",
                {name: CONFIG[name] for name in ("pad_token_id", "bos_token_id", "eos_token_id")})
    _write_weights(directory)
    _write_tokenizer(directory)


def _write_json(directory: str, name: str, content: dict) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)


def _write_weights(directory: str) -> None:
    import torch
    from safetensors.torch import save_file

    random = torch.Generator().manual_seed(0)

    def normal(rows: int, columns: int, scale: float) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=random) * scale).to(torch.bfloat16)

    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    heads = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    kv_heads = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    # Large enough for attention to matter and for the most likely token to stand out.
    inside = 2 / hidden**0.5
    ones = torch.ones(hidden, dtype=torch.bfloat16)
    weights = {"model.embed_tokens.weight": normal(VOCABULARY, hidden, 1.0)}
    for layer in range(CONFIG["num_hidden_layers"]):
        weights.update({f"model.layers.{layer}.{name}.weight": value for name, value in {
            "self_attn.q_proj": normal(heads, hidden, inside),
            "self_attn.k_proj": normal(kv_heads, hidden, inside),
            "self_attn.v_proj": normal(kv_heads, hidden, inside),
            "self_attn.o_proj": normal(hidden, heads, 1 / heads**0.5),
            "mlp.gate_proj": normal(inner, hidden, inside),
            "mlp.up_proj": normal(inner, hidden, inside),
            "mlp.down_proj": normal(hidden, inner, 2 / inner**0.5),
            "input_layernorm": ones,
            "post_attention_layernorm": ones,
        }.items()})
    weights["model.norm.weight"] = ones
    weights["lm_head.weight"] = normal(VOCABULARY, hidden, 2 * inside)
    save_file({name: value.clone() for name, value in weights.items()},
              os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})


def _write_tokenizer(directory: str) -> None:
    """Bytes in, bytes out; the ids beyond these, which only the model makes, read " w259" etc."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    pieces = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    pieces += [f"\u0120w{number}" for number in range(len(pieces), VOCABULARY)]
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, []))
    tokenizer.add_special_tokens([AddedToken(piece, special=True) for piece in SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", SPECIAL.index("<s>"))])
    tokenizer.save(os.path.join(directory, "tokenizer.json"))
    _write_json(directory, "tokenizer_config.json", {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    })
