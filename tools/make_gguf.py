#!/usr/bin/env python3
"""A GGUF file from a Hugging Face folder of this repository, laid out as llama.cpp's converter lays it out.

    pip install gguf numpy safetensors ml_dtypes
    python tools/make_gguf.py FOLDER OUT.gguf [--type F32|F16|BF16|Q8_0|…] [--embedding TYPE]

The file is written by the package `gguf`; what the converter does to the weights is restated here:
1 is added to zero-centred norms, A_log becomes -exp(A_log), value heads go from grouped to tiled order, llama's queries
and keys are interleaved, llama3 scaling becomes the tensor rope_freqs, the draft head is the block behind the last.
Matrices are stored as --type, vectors and the convolution as F32.
"""
import argparse
import json
import math
import struct
from pathlib import Path

import gguf
import ml_dtypes  # noqa: F401, teaches numpy bfloat16
import numpy as np

LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
}
MTP = {
    "mtp.fc.weight": "nextn.eh_proj.weight",
    "mtp.pre_fc_norm_embedding.weight": "nextn.enorm.weight",
    "mtp.pre_fc_norm_hidden.weight": "nextn.hnorm.weight",
    "mtp.norm.weight": "nextn.shared_head_norm.weight",
}


def tensors(folder):
    """Every text tensor as float32, without the prefix of composite checkpoints."""
    for path in sorted(folder.glob("*.safetensors")):
        if path.name.startswith("golden"):
            continue
        raw = path.read_bytes()
        (n,) = struct.unpack("<Q", raw[:8])
        header = json.loads(raw[8 : 8 + n])
        for name, entry in header.items():
            if name == "__metadata__" or ".visual." in name:
                continue
            begin, end = entry["data_offsets"]
            dtype = {"F32": "<f4", "F16": "<f2", "BF16": ml_dtypes.bfloat16}[entry["dtype"]]
            data = np.frombuffer(raw[8 + n + begin : 8 + n + end], dtype=dtype).reshape(entry["shape"])
            yield name.replace("model.language_model.", "model."), data.astype(np.float32)


def tiled(x, axis, n_key, per_key, unit):
    """Value heads from [key head][value head of it] to [value head of it][key head]."""
    shape = x.shape
    split = shape[:axis] + (n_key, per_key, unit) + shape[axis + 1 :]
    return np.swapaxes(x.reshape(split), axis, axis + 1).reshape(shape)


def converted(name, x, config):
    """The weight as the converter stores it."""
    if config["model_type"] == "llama":
        for proj, heads in [("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")]:
            if name.endswith(f"{proj}.weight"):
                n = config[heads]
                x = x.reshape(n, 2, x.shape[0] // n // 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        return x
    if not config["model_type"].startswith("qwen3_5"):
        return x
    n_key, n_value = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_dim, value_dim = config["linear_key_head_dim"], config["linear_value_head_dim"]
    part = name.rpartition("linear_attn.")[2]
    if part == "conv1d.weight":
        x = x.squeeze(1)
    if "linear_attn." in name and n_key != n_value:
        per_key, keys = n_value // n_key, 2 * n_key * key_dim
        if part in ("in_proj_qkv.weight", "conv1d.weight"):
            x = np.concatenate([x[:keys], tiled(x[keys:], 0, n_key, per_key, value_dim)])
        elif part == "in_proj_z.weight":
            x = tiled(x, 0, n_key, per_key, value_dim)
        elif part in ("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias"):
            x = tiled(x, 0, n_key, per_key, 1)
        elif part == "out_proj.weight":
            x = tiled(x, 1, n_key, per_key, value_dim)
    if part == "A_log":
        x = -np.exp(x.astype(np.float64)).astype(np.float32)
    elif part != "norm.weight" and ("norm.weight" in name or "pre_fc_norm" in name):
        x = x + np.float32(1)
    return x


def gguf_name(name, n_layers):
    fixed = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}
    if name in fixed:
        return fixed[name]
    if name in MTP:
        return f"blk.{n_layers}.{MTP[name]}"
    if name.startswith("mtp.layers.0."):
        block, suffix = n_layers, name.removeprefix("mtp.layers.0.")
    else:
        block, suffix = name.removeprefix("model.layers.").split(".", 1)
    return f"blk.{block}.{suffix}"


def named(name, config):
    full = gguf_name(name, config["num_hidden_layers"])
    if not full.startswith("blk.") or "nextn" in full:
        return full
    head, block, suffix = full.split(".", 2)
    if suffix == "post_attention_layernorm.weight":
        post = "post_attention_norm.weight" if config["model_type"].startswith("qwen3_5") else "ffn_norm.weight"
        return f"{head}.{block}.{post}"
    return f"{head}.{block}.{LAYER[suffix]}"


def metadata(w, config, generation, arch):
    rope = config.get("rope_parameters") or {}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    n_mtp = config.get("mtp_num_hidden_layers", 0) if arch == "qwen35" else 0
    w.add_block_count(config["num_hidden_layers"] + n_mtp)
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_head_count_kv(config["num_key_value_heads"])
    w.add_key_length(head_dim)
    w.add_value_length(head_dim)
    w.add_layer_norm_rms_eps(config["rms_norm_eps"])
    w.add_rope_freq_base(rope.get("rope_theta") or config.get("rope_theta"))
    w.add_vocab_size(config["vocab_size"])
    factor = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1
    w.add_rope_dimension_count(int(head_dim * factor))
    if arch == "qwen35":
        w.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        w.add_ssm_state_size(config["linear_key_head_dim"])
        w.add_ssm_group_count(config["linear_num_key_heads"])
        w.add_ssm_time_step_rank(config["linear_num_value_heads"])
        w.add_ssm_inner_size(config["linear_value_head_dim"] * config["linear_num_value_heads"])
        w.add_rope_dimension_sections(rope.get("mrope_section", [11, 11, 10]) + [0])
        if n_mtp:
            w.add_nextn_predict_layers(n_mtp)
        # The key cannot say an irregular order; the tensors do.
        interval = config.get("full_attention_interval", 4)
        regular = ["full_attention" if (i + 1) % interval == 0 else "linear_attention" for i in range(config["num_hidden_layers"])]
        if config.get("layer_types", regular) == regular:
            w.add_full_attention_interval(interval)


def rope_freqs(config):
    """llama3 scaling as divisors of the frequencies."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    original, low, high = (scaling[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    factors = []
    for j in range(0, head_dim, 2):
        wavelength = 2 * math.pi * config["rope_theta"] ** (j / head_dim)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(scaling["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def tokenizer(w, folder, config, eos):
    data = json.loads((folder / "tokenizer.json").read_text())
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    by_id = {i: (text, gguf.TokenType.NORMAL) for text, i in data["model"]["vocab"].items()}
    for token in data["added_tokens"]:
        by_id[token["id"]] = (token["content"], gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED)
    rows = [by_id.get(i, (f"[PAD{i}]", gguf.TokenType.UNUSED)) for i in range(config["vocab_size"])]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("qwen35")
    w.add_token_list([text for text, _ in rows])
    w.add_token_types([kind for _, kind in rows])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]])
    w.add_eos_token_id(eos)
    if config.get("bos_token_id") is not None:
        w.add_bos_token_id(config["bos_token_id"])
    w.add_add_bos_token(bool(settings.get("add_bos_token")))
    template = folder / "chat_template.jinja"
    text = template.read_text() if template.exists() else settings.get("chat_template")
    if text:
        w.add_chat_template(text)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="BF16")
    parser.add_argument("--embedding")
    args = parser.parse_args()
    config = json.loads((args.folder / "config.json").read_text())
    config = {**config, **config.get("text_config", {})}
    generation = json.loads((args.folder / "generation_config.json").read_text())
    arch = {"qwen3_5_text": "qwen35", "qwen3_5": "qwen35"}.get(config["model_type"], config["model_type"])
    eos = generation.get("eos_token_id", config["eos_token_id"])

    w = gguf.GGUFWriter(args.out, arch)
    w.add_type("model")
    w.add_name(args.folder.name)
    metadata(w, config, generation, arch)
    tokenizer(w, args.folder, config, eos[0] if isinstance(eos, list) else eos)
    for key, add in [("temperature", w.add_sampling_temp), ("top_p", w.add_sampling_top_p), ("top_k", w.add_sampling_top_k)]:
        if key in generation:
            add(generation[key])
    if (factors := rope_freqs(config)) is not None:
        w.add_tensor("rope_freqs.weight", factors)
    tied = config.get("tie_word_embeddings", False)
    for name, x in tensors(args.folder):
        if name == "lm_head.weight" and tied:
            continue
        x = np.ascontiguousarray(converted(name, x, config))
        matrix = x.ndim == 2 and "conv1d" not in name
        kind = args.type if matrix else "F32"
        if name == "model.embed_tokens.weight" and args.embedding:
            kind = args.embedding
        if kind == "F16":
            w.add_tensor(named(name, config), x.astype(np.float16))
        elif kind == "F32":
            w.add_tensor(named(name, config), x)
        else:
            kind = gguf.GGMLQuantizationType[kind]
            w.add_tensor(named(name, config), gguf.quants.quantize(x, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    main()
