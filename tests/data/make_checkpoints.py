#!/usr/bin/env python3
"""make_checkpoints.py [--small] FOLDER [NAME...]: random models as Hugging Face folders, one folder a family, and as GGUF
files; beside them tokens.npy, the logits, and the 64 tokens that greedy decoding adds. tests/e2e/test_checkpoints.sh
compares the tool with them: with those of tests/data/checkpoints, which `--small` made, and with those of the folder
$KVASIR_CHECKPOINTS. Needs numpy, torch, transformers, gguf."""
import json, os, sys
import numpy as np
import torch
import transformers as t
from safetensors.numpy import save_file

SIZES = dict(vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=256)
SMALL = dict(SIZES, vocab_size=24, hidden_size=8, intermediate_size=12, num_attention_heads=2, max_position_embeddings=128)
small = "--small" in sys.argv
if small:
    sys.argv.remove("--small")
    SIZES = SMALL

FAMILIES = {
    "llama": (t.LlamaConfig, dict(SIZES, num_key_value_heads=2)),
    "llama3": (t.LlamaConfig, dict(SIZES, vocab_size=257, tie_word_embeddings=True, rope_theta=5e5, rope_scaling={
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 5e5})),
    "bias": (t.LlamaConfig, dict(SIZES, attention_bias=True)),
    "mistral": (t.MistralConfig, dict(SIZES, num_key_value_heads=2, sliding_window=7, head_dim=6)),
    "qwen2": (t.Qwen2Config, dict(SIZES, num_key_value_heads=2)),
    "qwen3": (t.Qwen3Config, dict(SIZES, num_key_value_heads=2, head_dim=6, tie_word_embeddings=True)),
    "gemma": (t.GemmaConfig, dict(SIZES, num_key_value_heads=1, head_dim=6)),
    "gpt2": (t.GPT2Config, dict(vocab_size=SIZES["vocab_size"], n_embd=SIZES["hidden_size"], n_layer=2,
                             n_head=SIZES["num_attention_heads"], n_positions=SIZES["max_position_embeddings"])),
}


def prompt_for(vocabulary):
    """Bytes of a text where they are tokens."""
    return list(b"the quick brown fox")[:8 if small else None] if vocabulary > 256 else [7 * i % vocabulary for i in range(12)]


if small:
    del FAMILIES["bias"]
    for name, (_, fields) in FAMILIES.items():
        if name not in ("llama", "mistral"):
            fields["n_layer" if name == "gpt2" else "num_hidden_layers"] = 1


def randomise(model):
    """Values far enough from the initial ones that every parameter counts."""
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            scale = 0.3 if p.dim() > 1 else 0.5
            p.add_(scale * torch.randn(p.shape))


def greedy(model, tokens, n):
    with torch.no_grad():
        for _ in range(n):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], 1)
    return tokens


def make(folder, name):
    config, fields = FAMILIES[name]
    torch.manual_seed(7)
    model = t.AutoModelForCausalLM.from_config(config(**fields), dtype=torch.float32)
    randomise(model)
    model = model.eval()
    where = os.path.join(folder, name)
    dtype = {"qwen2": torch.bfloat16, "gemma": torch.float16}.get(name)
    if dtype:
        model = model.to(dtype)
    model.save_pretrained(where, max_shard_size="3KB" if name == "mistral" else "1GB")
    model = t.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32).eval()
    tokens = torch.tensor([prompt_for(model.config.vocab_size)])
    with torch.no_grad():
        logits = model(tokens).logits
    np.save(os.path.join(where, "tokens.npy"), tokens.numpy().astype(np.int32))
    np.save(os.path.join(where, "logits.npy"), logits.numpy())
    text = greedy(model, tokens, 64)[0, tokens.shape[1]:]
    np.save(os.path.join(where, "greedy.npy"), text.numpy().astype(np.int32))


# ---- Baichuan-M1, which transformers does not have: its definition in numpy --------------------------------------------

M1 = dict(model_type="baichuan_m1", vocab_size=257, hidden_size=32, intermediate_size=48, num_hidden_layers=3,
          num_attention_heads=2, num_key_value_heads=1, num_swa_attention_heads=4, num_swa_key_value_heads=2,
          sliding_window=7, sliding_window_layers=[1], conv_window=2, rope_theta=1e4, rms_norm_eps=1e-6, hidden_act="silu",
          max_position_embeddings=256, tie_word_embeddings=False)


if small:
    M1.update({k: SMALL[k] for k in ("vocab_size", "hidden_size", "intermediate_size")}, num_hidden_layers=2)


def m1_tensors(c, draw):
    d, f = c["hidden_size"], c["intermediate_size"]
    w = {"model.embed_tokens.weight": draw(c["vocab_size"], d), "lm_head.weight": draw(c["vocab_size"], d),
         "model.norm.weight": 1 + draw(d)}
    for l in range(c["num_hidden_layers"]):
        n, n_kv = m1_heads(c, l)
        at = f"model.layers.{l}."
        w[at + "self_attn.W_pack.weight"] = draw(d + 2 * n_kv * (d // n), d)
        w[at + "self_attn.o_proj.weight"] = draw(d, d)
        w[at + "self_attn.conv_k"], w[at + "self_attn.conv_v"] = draw(1, 1, n_kv, 1, 2), draw(1, 1, n_kv, 1, 2)
        w[at + "mlp.gate_proj.weight"], w[at + "mlp.up_proj.weight"] = draw(f, d), draw(f, d)
        w[at + "mlp.down_proj.weight"] = draw(d, f)
        w[at + "input_layernorm.weight"], w[at + "post_attention_layernorm.weight"] = 1 + draw(d), 1 + draw(d)
    return w


def m1_heads(c, layer):
    swa = "swa_" if layer in c["sliding_window_layers"] else ""
    return c[f"num_{swa}attention_heads"], c[f"num_{swa}key_value_heads"]


def rms(x, scale, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * scale


def rotate(x, base):  # [heads, T, head]
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)], -1)


def shift(x, conv):  # the previous row by column 0, the current one by column 1
    previous = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], 1)
    return previous * conv[0, 0, :, :, :1] + x * conv[0, 0, :, :, 1:]


def m1_attention(c, w, layer, x):
    n, n_kv = m1_heads(c, layer)
    d, head, at = c["hidden_size"], c["hidden_size"] // n, f"model.layers.{layer}.self_attn."
    q, k, v = np.split(x @ w[at + "W_pack.weight"].T, [d, d + n_kv * head], -1)
    q, k, v = (p.reshape(len(x), -1, head).transpose(1, 0, 2) for p in (q, k, v))
    k, v = shift(k, w[at + "conv_k"]), shift(v, w[at + "conv_v"])
    q, k = rotate(q, c["rope_theta"]), rotate(k, c["rope_theta"])
    k, v = np.repeat(k, n // n_kv, 0), np.repeat(v, n // n_kv, 0)
    s = q @ k.transpose(0, 2, 1) / np.sqrt(head)
    age = np.arange(len(x))[:, None] - np.arange(len(x))
    window = c["sliding_window"] if layer in c["sliding_window_layers"] else len(x)
    s = np.where((age >= 0) & (age < window), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    y = (p / p.sum(-1, keepdims=True)) @ v
    return y.transpose(1, 0, 2).reshape(len(x), d) @ w[at + "o_proj.weight"].T


def m1_logits(c, w, tokens):
    w = {name: v.astype(np.float64) for name, v in w.items()}
    x, eps = w["model.embed_tokens.weight"][tokens], c["rms_norm_eps"]
    for l in range(c["num_hidden_layers"]):
        at = f"model.layers.{l}."
        x = x + m1_attention(c, w, l, rms(x, w[at + "input_layernorm.weight"], eps))
        h = rms(x, w[at + "post_attention_layernorm.weight"], eps)
        g = h @ w[at + "mlp.gate_proj.weight"].T
        x = x + (g / (1 + np.exp(-g)) * (h @ w[at + "mlp.up_proj.weight"].T)) @ w[at + "mlp.down_proj.weight"].T
    unembed = w["lm_head.weight"]
    unembed = unembed / (np.linalg.norm(unembed, axis=-1, keepdims=True) + 1e-7)
    return rms(x, w["model.norm.weight"], eps) @ unembed.T


def make_m1(folder, c=M1):
    prompt = prompt_for(c["vocab_size"])
    random = np.random.default_rng(7)
    w = m1_tensors(c, lambda *shape: (0.4 * random.standard_normal(shape)).astype(np.float32))
    where = os.path.join(folder, "m1")
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, "config.json"), "w") as f:
        json.dump(c, f, indent=2)
    save_file(w, os.path.join(where, "model.safetensors"), {"format": "pt"})
    tokens = list(prompt)
    np.save(os.path.join(where, "tokens.npy"), np.array([tokens], np.int32))
    np.save(os.path.join(where, "logits.npy"), m1_logits(c, w, tokens)[None].astype(np.float32))
    for _ in range(64):
        tokens.append(int(m1_logits(c, w, tokens)[-1].argmax()))
    np.save(os.path.join(where, "greedy.npy"), np.array(tokens[len(prompt):], np.int32))


# ---- GGUF: llama's tensors as its converters write them ------------------------------------------------------------------

GGUF_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
              "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
              "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
              "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def gguf_name(name):
    stem = name.removesuffix(".weight")
    if stem in GGUF_NAMES:
        return GGUF_NAMES[stem] + ".weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest]}.weight"


def in_pairs(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def make_gguf(folder, kind):
    """A folder `llama` in GGUF: matrices of a kind, F32, F16, BF16, Q8_0, Q4_0; the logits are those of the values read."""
    import gguf
    config = t.LlamaConfig(**dict(SIZES, vocab_size=24, hidden_size=32, intermediate_size=32, num_attention_heads=4,
                                  num_key_value_heads=2, num_hidden_layers=1))
    torch.manual_seed(7)
    model = t.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    randomise(model)
    where = os.path.join(folder, "gguf_" + kind.lower())
    os.makedirs(where, exist_ok=True)
    w = gguf.GGUFWriter(os.path.join(where, "model.gguf"), "llama")
    w.add_context_length(config.max_position_embeddings)
    w.add_embedding_length(config.hidden_size)
    w.add_block_count(config.num_hidden_layers)
    w.add_feed_forward_length(config.intermediate_size)
    w.add_head_count(config.num_attention_heads)
    w.add_head_count_kv(config.num_key_value_heads)
    w.add_layer_norm_rms_eps(config.rms_norm_eps)
    w.add_rope_dimension_count(config.head_dim)
    w.add_rope_freq_base(1e4)
    w.add_tokenizer_model("llama")
    w.add_token_list([f"<{i}>" for i in range(config.vocab_size)])
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    state = model.state_dict()
    for name, value in state.items():
        v, type_ = value.numpy(), gguf.GGMLQuantizationType[kind if value.dim() > 1 else "F32"]
        n = heads.get(name.split(".")[-2])
        packed = gguf.quants.quantize(in_pairs(v, n) if n else v, type_)
        w.add_tensor(gguf_name(name), packed, raw_dtype=type_)
        read = gguf.quants.dequantize(gguf.quants.quantize(v, type_), type_).astype(np.float32)
        state[name] = torch.from_numpy(read.reshape(v.shape).copy())
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    model.load_state_dict(state)
    tokens = torch.tensor([prompt_for(config.vocab_size)])
    with torch.no_grad():
        np.save(os.path.join(where, "logits.npy"), model.eval()(tokens).logits.numpy())
    np.save(os.path.join(where, "tokens.npy"), tokens.numpy().astype(np.int32))


if __name__ == "__main__":
    kinds = ["gguf_q8_0", "gguf_q4_0"] if small else ["gguf_" + k for k in ("f32", "f16", "bf16", "q8_0", "q4_0")]
    for each in sys.argv[2:] or [*sorted(FAMILIES), "m1", *kinds]:
        if each == "m1":
            make_m1(sys.argv[1])
        elif each.startswith("gguf_"):
            make_gguf(sys.argv[1], each.removeprefix("gguf_").upper())
        else:
            make(sys.argv[1], each)
