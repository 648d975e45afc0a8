#!/usr/bin/env python3
"""Blocks of every GGUF type and what an independent reader makes of them, for the tests of `checkpoint`.

Writes golden/gguf/blocks.safetensors: for each type `<type>.blocks` (random bytes, scales finite) and `<type>.values`
(float32) as the package `gguf` dequantises them; `<type>.rows` and `<type>.row_values`, random normal weights quantised
by the package, where it can. And golden/gguf/fp8.safetensors: all 256 codes of float8_e4m3fn as torch reads them, and
two matrices with scales per block, the blocks at the edges cut, as torch multiplies them out.

    pip install gguf torch safetensors
    python tools/make_gguf_fixtures.py
"""
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

OUT = Path(__file__).resolve().parent.parent / "golden" / "gguf"
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Where the half-precision scales of a block stand.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
N_BLOCKS = 8


def blocks(rng, name):
    kind = gguf.GGMLQuantizationType[name]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    n = N_BLOCKS if name in SCALES else 256
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in SCALES.get(name, [0]):
        scale = rng.normal(0, 0.05, n)
        # One block with a subnormal scale, one without any, one that is large.
        scale[:3] = [3e-6, 0.0, -300.0] if name in SCALES else scale[:3]
        bits = scale.astype(np.float16) if name != "BF16" else scale.astype(np.float32).view(np.uint32) >> 16
        raw[:, at : at + 2] = bits.astype(bits.dtype if name != "BF16" else np.uint16).view(np.uint8).reshape(n, 2)
    return raw, dequantize(raw, kind).astype(np.float32)


def main():
    rng = np.random.default_rng(20261130)
    out = {}
    for name in TYPES:
        out[f"{name}.blocks"], out[f"{name}.values"] = blocks(rng, name)
        try:
            rows = rng.normal(0, 0.3, (3, 256)).astype(np.float32)
            raw = quantize(rows, gguf.GGMLQuantizationType[name])
            out[f"{name}.rows"] = np.ascontiguousarray(raw).view(np.uint8)
            out[f"{name}.row_values"] = dequantize(raw, gguf.GGMLQuantizationType[name]).astype(np.float32)
        except NotImplementedError:
            pass  # the package reads the K types only
    OUT.mkdir(parents=True, exist_ok=True)
    save_file({k: np.ascontiguousarray(v) for k, v in out.items()}, OUT / "blocks.safetensors")

    torch.manual_seed(20261130)
    codes = torch.arange(256, dtype=torch.uint8)
    fp8 = {"codes": codes, "code_values": codes.view(torch.float8_e4m3fn).to(torch.float32)}
    for name, (n, k), scale_type in [("edges", (132, 140), torch.float32), ("bf16_scales", (8, 130), torch.bfloat16)]:
        weight = (torch.randn(n, k) * 100).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = (torch.rand(-(-n // 128), -(-k // 128)) * 1e-2 + 1e-4).to(scale_type)
        spread = scales.float().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
        fp8 |= {f"{name}.weight": weight, f"{name}.scale_inv": scales, f"{name}.values": weight.float() * spread}
    save_torch(fp8, OUT / "fp8.safetensors")


if __name__ == "__main__":
    main()
