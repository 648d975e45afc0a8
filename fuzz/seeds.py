"""Writes first inputs for every fuzz target into fuzz/corpus, from the cases and from small files made here."""

import json
import struct
from pathlib import Path

HERE = Path(__file__).parent
CASES = sorted((HERE / "../cases/diagnose").resolve().rglob("*"))
MOST = 6000  # bytes of a seed: longer ones only make the fuzzer slow


def write(target, name, content):
    folder = HERE / "corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(content)


def kind_of(path):
    """The parser of `configurations` that a file of a case is for; see the target's match."""
    name = path.name
    if ".service" in name or name.endswith(".conf"):
        return [0, 10]
    if name.endswith((".yml", ".yaml")):
        return [1, 2, 10]
    if name.endswith(("history", ".sh")):
        return [3, 4, 10]
    if name == "cmdline":
        return [3]
    if name.endswith(".json"):
        return [2, 5, 7, 9]
    if name.endswith((".prom", ".txt", ".csv")):
        return [6, 8, 9]
    return []


def gguf():
    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    def pair(key, kind, value):
        return text(key) + struct.pack("<I", kind) + value

    meta = [
        pair("general.architecture", 8, text("llama")),
        pair("general.alignment", 4, struct.pack("<I", 32)),
        pair("llama.block_count", 4, struct.pack("<I", 1)),
        pair("llama.embedding_length", 4, struct.pack("<I", 8)),
        pair("llama.feed_forward_length", 4, struct.pack("<I", 16)),
        pair("llama.attention.head_count", 4, struct.pack("<I", 2)),
        pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)),
        pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4)),
        pair("llama.context_length", 4, struct.pack("<I", 64)),
        pair("tokenizer.ggml.model", 8, text("gpt2")),
        pair("tokenizer.ggml.tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b")),
        pair("tokenizer.ggml.token_type", 9, struct.pack("<IQii", 5, 2, 1, 1)),
        pair("tokenizer.ggml.merges", 9, struct.pack("<IQ", 8, 1) + text("a b")),
        pair("tokenizer.ggml.eos_token_id", 4, struct.pack("<I", 1)),
    ]
    tensors = [
        text("token_embd.weight") + struct.pack("<IQQIQ", 2, 8, 2, 0, 0),
        text("output_norm.weight") + struct.pack("<IQIQ", 1, 8, 0, 64),
        text("blk.0.attn_q.weight") + struct.pack("<IQQIQ", 2, 8, 8, 1, 96),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    body = head + b"".join(meta) + b"".join(tensors)
    return body + bytes(-len(body) % 32 + 256)


for i, path in enumerate(path for path in CASES if path.is_file()):
    content = path.read_bytes()
    if path.suffix == ".log":
        head, tail = content[: MOST // 2], content[-MOST // 2 :]
        write("logs", f"case-{i}", head + b"\n" + tail)
        write("logs", f"pair-{i}", tail + b"\0" + head)
    for kind in kind_of(path):
        write("configurations", f"case-{i}-{kind}", bytes([kind]) + content[:MOST])
    write("redaction", f"case-{i}", content[:800])

write("configurations", "flags", bytes([11]) + b"--speculative-num-steps=3\n--max-num-seqs=4\n-c=4096\n--spec-type=draft-mtp\n")
write("gguf", "llama", gguf())
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 8, "hidden_size": 8, "intermediate_size": 16,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "rope_theta": 1e4,
    "max_position_embeddings": 64, "tie_word_embeddings": True, "torch_dtype": "float32", "eos_token_id": 1, "hidden_act": "silu",
}
HEADER = {"__metadata__": {"format": "pt"}, "model.norm.weight": {"dtype": "F32", "shape": [8], "data_offsets": [0, 32]}}
write("safetensors", "llama", json.dumps(CONFIG).encode() + b"\0" + json.dumps(HEADER).encode())
for i, path in enumerate(sorted((HERE / "../models").resolve().rglob("config.json"))):
    write("safetensors", f"model-{i}", path.read_bytes()[:MOST] + b"\0" + json.dumps(HEADER).encode())
for i, line in enumerate((HERE / "../cases/api-cases.jsonl").read_text().splitlines()):
    for k, step in enumerate(json.loads(line).get("request") or []):
        body = step.get("body")
        if isinstance(body, dict):
            write("request_body", f"case-{i}-{k}", json.dumps(body).encode()[:MOST])
