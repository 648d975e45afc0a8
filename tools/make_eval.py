#!/usr/bin/env python3
"""Writes what golden/eval expects of `outrider eval`: the loss of the embedded model on text.txt, in float64.

    python make_eval.py ../models/outrider-tiny ../golden/eval
"""
import json
import os
import sys

import tokenizers
import torch

import refmodel

WINDOW = 256


def main():
    model_dir, out_dir = sys.argv[1], sys.argv[2]
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(model_dir, "tokenizer.json"))
    with open(os.path.join(out_dir, "text.txt"), encoding="utf-8") as file:
        ids = tokenizer.encode(file.read(), add_special_tokens=False).ids
    model = refmodel.RefModel(model_dir, torch.float64)
    losses = []
    for start in range(0, len(ids) - WINDOW + 1, WINDOW):
        window = ids[start:start + WINDOW]
        logits = model.forward(torch.tensor(window), model.new_state()).logits
        log_p = logits.log_softmax(-1)
        losses += [-log_p[i - 1, window[i]].item() for i in range(WINDOW // 2, WINDOW)]
    expected = {"window": WINDOW, "n_tokens": len(losses), "nats_per_token": sum(losses) / len(losses)}
    with open(os.path.join(out_dir, "outrider-tiny.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, indent=1)
        file.write("\n")


main()
