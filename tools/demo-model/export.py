#!/usr/bin/env python3
"""Write the trained model as a GGUF file with ternary (TQ2_0) blocks.

    python export.py CORPUS_DIR TRAIN_OUT MODEL.gguf [--embedding q8_0|q4_0]

CORPUS_DIR holds tokenizer.json, TRAIN_OUT the master-N.safetensors and
train.json of train.py.

A matrix has one scale, gamma = mean|W|; every TQ2_0 block of it carries that gamma (as
f16), so the blocks are packed here and not by a quantiser that would pick a scale for
each block of 256 weights.
"""
import argparse
import glob
import json
import os

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from safetensors.numpy import load_file

ARCH = "bitnet-b1.58"
TERNARY = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def ternary(w):
    """Master weights -> (-1/0/1 as int8, gamma as f16)."""
    gamma = np.float16(max(np.abs(w.astype(np.float32)).mean(dtype=np.float64), 1e-5))
    t = np.clip(np.rint(w.astype(np.float32) / np.float32(gamma)), -1, 1)
    return t.astype(np.int8), gamma


def pack_tq2_0(t, gamma):
    """[rows, n] of -1/0/1 -> [rows, n / 256 * 66] bytes: qs[64], then the scale.

    Each half of a block (128 weights) is 32 bytes; bit pair l of byte m is weight 32 l + m.
    """
    rows, n = t.shape
    assert n % 256 == 0
    u = (t + 1).astype(np.uint8).reshape(rows, n // 256, 2, 4, 32)
    qs = u[..., 0, :] | u[..., 1, :] << 2 | u[..., 2, :] << 4 | u[..., 3, :] << 6
    out = np.empty((rows, n // 256, 66), np.uint8)
    out[..., :64] = qs.reshape(rows, n // 256, 64)
    out[..., 64:] = np.frombuffer(gamma.tobytes(), np.uint8)
    return out.reshape(rows, -1)


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("corpus")
    ap.add_argument("trained")
    ap.add_argument("gguf")
    ap.add_argument("--embedding", choices=("q8_0", "q4_0"), default="q8_0")
    args = ap.parse_args()
    weights = {}
    for path in sorted(glob.glob(os.path.join(args.trained, "master-*.safetensors"))):
        weights.update(load_file(path))
    with open(os.path.join(args.trained, "train.json"), encoding="utf-8") as f:
        c = json.load(f)["config"]
    with open(os.path.join(args.corpus, "tokenizer.json"), encoding="utf-8") as f:
        bpe = json.load(f)["model"]

    w = gguf.GGUFWriter(args.gguf, ARCH)
    w.add_name("Rust documentation BitNet b1.58")
    w.add_description(
        "A small ternary language model, trained from nothing on the Rust documentation and "
        "library source that come with the Rust 1.95.0 toolchain, all MIT OR Apache-2.0: the "
        "Book, the Reference, the standard library, Cargo, rustc and other books, and the "
        "release notes. A demonstration: it writes text that looks like documentation and "
        "states falsehoods freely.")
    w.add_license("MIT OR Apache-2.0")
    w.add_languages(["en"])
    w.add_uint32(f"{ARCH}.context_length", c["context"])
    w.add_uint32(f"{ARCH}.embedding_length", c["embd"])
    w.add_uint32(f"{ARCH}.block_count", c["layers"])
    w.add_uint32(f"{ARCH}.feed_forward_length", c["ffn"])
    w.add_uint32(f"{ARCH}.attention.head_count", c["embd"] // c["head_dim"])
    w.add_uint32(f"{ARCH}.attention.head_count_kv", c["kv_heads"])
    w.add_float32(f"{ARCH}.attention.layer_norm_rms_epsilon", 1e-5)
    w.add_float32(f"{ARCH}.rope.freq_base", c["rope_base"])
    w.add_uint32(f"{ARCH}.rope.dimension_count", c["head_dim"])
    w.add_uint32(f"{ARCH}.vocab_size", c["vocab"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_TQ2_0)
    w.add_quantization_version(2)

    tokens = sorted(bpe["vocab"], key=bpe["vocab"].get)
    assert list(bpe["vocab"][t] for t in tokens) == list(range(c["vocab"]))
    special = {"<|begin_of_text|>", "<|end_of_text|>"}
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL
                       for t in tokens])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in bpe["merges"]])
    w.add_bos_token_id(bpe["vocab"]["<|begin_of_text|>"])
    w.add_eos_token_id(bpe["vocab"]["<|end_of_text|>"])
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)

    kind = Q.Q8_0 if args.embedding == "q8_0" else Q.Q4_0
    emb = gguf.quants.quantize(weights["token_embd.weight"].astype(np.float32), kind)
    w.add_tensor("token_embd.weight", emb, raw_dtype=kind)
    w.add_tensor("output_norm.weight", weights["output_norm.weight"].astype(np.float32))
    zeros = []
    for i in range(c["layers"]):
        for name in ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_sub_norm", "attn_output",
                     "ffn_norm", "ffn_gate", "ffn_up", "ffn_sub_norm", "ffn_down"):
            key = f"blk.{i}.{name}.weight"
            if name in TERNARY:
                t, gamma = ternary(weights[key])
                zeros.append((t == 0).mean())
                w.add_tensor(key, pack_tq2_0(t, gamma), raw_dtype=Q.TQ2_0)
            else:
                w.add_tensor(key, weights[key].astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    n = sum(v.size for v in weights.values())
    print(f"{args.gguf}: {os.path.getsize(args.gguf)} bytes, {n} parameters, "
          f"{100 * np.mean(zeros):.1f} % of the ternary weights are zero")


if __name__ == "__main__":
    main()
