#!/usr/bin/env python3
"""Writes a GGUF file of random weights in the shape of a published model, which this project's command and llama.cpp
both read: to measure with, and to put a server under load with. Its texts mean nothing. Needs the packages numpy and
gguf.

    random_model.py SHAPE TYPE OUT.gguf [--layers N] [--tokenizer OTHER.gguf]

TYPE is a format of tensors, which all matrices then have, or Q4_K_M, llama.cpp's mixture. MXFP4 is for experts alone,
as in files: the other matrices of a mixture are Q8_0. Routers are F32. Without --tokenizer the file has none
(llama.cpp's no_vocab).

Values have mean 0 and the deviation of a trained matrix, so that tokens differ and routers spread them over the
experts.
"""
import argparse
import math
from types import SimpleNamespace

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

LLAMA = dict(arch="llama", eps=1e-5, base=500000.0, layers=32, width=4096, ffn=14336, heads=32, kv_heads=8, head=128, vocab=128256,
             experts=0, used=0, window=0, tied=False, bias=False, context=131072)
BERT = LLAMA | dict(arch="bert", eps=1e-12, context=512, bias=True, tied=True)
SHAPES = {
    "llama-8b": LLAMA,
    "tinyllama-1.1b": LLAMA | dict(base=10000.0, layers=22, width=2048, ffn=5632, kv_heads=4, head=64, vocab=32000),
    "qwen3-30b-a3b": LLAMA | dict(arch="qwen3moe", eps=1e-6, base=1e6, layers=48, width=2048, ffn=768, kv_heads=4, vocab=151936,
                                  experts=128, used=8),
    "gpt-oss-20b": LLAMA | dict(arch="gpt-oss", base=150000.0, layers=24, width=2880, ffn=2880, heads=64, head=64, vocab=201088,
                                experts=32, used=4, window=128, bias=True),
    "gemma3-4b": LLAMA | dict(arch="gemma3", eps=1e-6, base=1e6, layers=34, width=2560, ffn=10240, heads=8, kv_heads=4, head=256,
                              vocab=262208, window=1024, tied=True),
    "bert-base": BERT | dict(layers=12, width=768, ffn=3072, heads=12, kv_heads=12, head=64, vocab=30522),
    # Of 250,002 words as many as BERT has: the others would only make the file larger.
    "bge-m3": BERT | dict(eps=1e-5, layers=24, width=1024, ffn=4096, heads=16, kv_heads=16, head=64, vocab=30522, context=8192),
}
# Blocks (or single elements) in the array whose parts fill the tensors.
POOL = 1 << 16
# Where the factors of a block are (f16), and the factor of its minimum in those of its scale, where it has one: minus the mean code.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208], "IQ1_S": [0], "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0],
          "IQ4_NL": [0], "IQ4_XS": [0], "TQ1_0": [52], "TQ2_0": [64]}
MINIMA = {"Q4_1": -7.5, "Q5_1": -15.5, "Q2_K": 1.5, "Q4_K": 7.5, "Q5_K": 15.5}


def f16(x):
    return np.asarray(x, np.float16).view(np.uint8).reshape(-1, 2)


def blocks(kind, deviation):
    """Blocks of random codes whose values have mean 0 and this deviation."""
    random = np.random.default_rng(1)
    if kind in (Type.F32, Type.F16, Type.BF16):
        values = random.standard_normal(POOL << 6, dtype=np.float32) * np.float32(deviation)
        return gguf.quants.quantize(values, kind).view(np.uint8).reshape(-1, gguf.GGML_QUANT_SIZES[kind][1])
    data = random.integers(0, 256, (POOL, gguf.GGML_QUANT_SIZES[kind][1]), dtype=np.uint8)
    # A block's sign is as random as its codes, since these lie one below 0 more than above in some formats.
    sign = random.choice([-1.0, 1.0], POOL)
    if kind in (Type.Q4_K, Type.Q5_K):
        # Eight minima of six bits equal to the scales.
        data[:, 8:12] = data[:, 4:8]
        data[:, 12:16] = data[:, 12:16] & 15 | (data[:, 12:16] & 15) << 4
    if kind == Type.Q2_K:
        data[:, :16] = data[:, :16] & 15 | (data[:, :16] & 15) << 4
    if kind == Type.TQ2_0:
        trits = random.integers(0, 3, (4, POOL, 64), dtype=np.uint8)
        data[:, :64] = trits[0] | trits[1] << 2 | trits[2] << 4 | trits[3] << 6

    def scaled(factor):
        if kind == Type.MXFP4:
            data[:, 0] = 127 + round(math.log2(factor)) + random.integers(-1, 2, POOL)
        elif kind == Type.NVFP4:
            # Bytes of four bits of exponent (bias 7) and three of mantissa.
            data[:, :4] = np.clip((round(math.log2(factor)) + 7) * 8 + random.integers(0, 8, (POOL, 4)), 1, 126)
        elif kind == Type.IQ1_M:
            bits = np.asarray(sign * factor, np.float16).view(np.uint16)
            for i in range(4):
                data[:, 49 + 2 * i] = data[:, 49 + 2 * i] & 15 | (bits >> 4 * i & 15).astype(np.uint8) << 4
        else:
            at = SCALES[kind.name]
            data[:, at[0]:at[0] + 2] = f16(sign * factor)
            if len(at) > 1:
                data[:, at[1]:at[1] + 2] = f16(sign * factor * MINIMA[kind.name])
        return data

    sample = gguf.quants.dequantize(scaled(1.0)[:1 << 12], kind)
    return scaled(deviation / float(sample.std()))


def matrix_type(name, layer, shape, wanted):
    """The format of a matrix, as llama.cpp's quantiser chooses it."""
    if "ffn_gate_inp" in name:
        return Type.F32
    if wanted == "Q4_K_M":
        eighth = shape.layers // 8
        more = layer is not None and (layer < eighth or layer >= 7 * shape.layers // 8 or (layer - eighth) % 3 == 2)
        output = name == "output" or shape.tied and name == "token_embd"
        return Type.Q6_K if output or more and ("attn_v" in name or "ffn_down" in name) else Type.Q4_K
    if wanted == "MXFP4" and shape.experts and "_exps" not in name:
        return Type.Q8_0
    if shape.arch == "gemma3" and name == "token_embd" and wanted not in ("F32", "F16", "BF16", "Q8_0"):
        return Type.Q6_K
    return Type[wanted]


def tensors(s):
    """Names and sizes (rows last, as NumPy has them) of all weights, with their layer."""
    q, kv = s.heads * s.head, s.kv_heads * s.head
    many = (s.experts,) if s.experts else ()
    encoder = s.arch == "bert"
    yield None, "token_embd.weight", (s.vocab, s.width)
    if encoder:
        yield None, "position_embd.weight", (s.context, s.width)
        yield None, "token_types.weight", (2, s.width)
    for name in ["token_embd_norm.weight", "token_embd_norm.bias"] if encoder else ["output_norm.weight"]:
        yield None, name, (s.width,)
    if not s.tied:
        yield None, "output.weight", (s.vocab, s.width)
    norms = {"llama": ["attn_norm", "ffn_norm"], "qwen3moe": ["attn_norm", "ffn_norm"], "bert": ["attn_output_norm", "layer_output_norm"],
             "gpt-oss": ["attn_norm", "post_attention_norm"],
             "gemma3": ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"]}[s.arch]
    up = ["ffn_up"] if encoder else ["ffn_gate", "ffn_up"]
    matrices = [("attn_q", (q, s.width)), ("attn_k", (kv, s.width)), ("attn_v", (kv, s.width)), ("attn_output", (s.width, q))]
    matrices += [("ffn_gate_inp", (s.experts, s.width))] if many else []
    suffix = "_exps" if many else ""
    matrices += [(name + suffix, (*many, s.ffn, s.width)) for name in up] + [("ffn_down" + suffix, (*many, s.width, s.ffn))]
    for i in range(s.layers):
        for name in norms:
            for part in ["weight", "bias"] if encoder else ["weight"]:
                yield i, f"blk.{i}.{name}.{part}", (s.width,)
        if s.arch in ("qwen3moe", "gemma3"):
            for name in ["attn_q_norm", "attn_k_norm"]:
                yield i, f"blk.{i}.{name}.weight", (s.head,)
        if s.arch == "gpt-oss":
            yield i, f"blk.{i}.attn_sinks.weight", (s.heads,)
        for name, size in matrices:
            yield i, f"blk.{i}.{name}.weight", size
            if s.bias:
                yield i, f"blk.{i}.{name}.bias", size[:-1]


def metadata(out, s):
    out.add_context_length(s.context)
    out.add_embedding_length(s.width)
    out.add_block_count(s.layers)
    out.add_feed_forward_length(s.ffn)
    out.add_head_count(s.heads)
    out.add_vocab_size(s.vocab)
    if s.arch == "bert":
        out.add_layer_norm_eps(s.eps)
        out.add_causal_attention(False)
        out.add_pooling_type(gguf.PoolingType.CLS)
        return
    out.add_head_count_kv(s.kv_heads)
    out.add_key_length(s.head)
    out.add_value_length(s.head)
    out.add_rope_dimension_count(s.head)
    out.add_rope_freq_base(s.base)
    out.add_layer_norm_rms_eps(s.eps)
    if s.window:
        out.add_sliding_window(s.window)
    if s.experts:
        out.add_expert_count(s.experts)
        out.add_expert_used_count(s.used)
        out.add_expert_feed_forward_length(s.ffn)


def tokenizer(out, path, vocab):
    """That of another file, grown to this vocabulary."""
    if path is None:
        out.add_tokenizer_model("no_vocab")
        return
    fill = {"tokens": lambda i: f"<|unused{i}|>", "token_type": lambda i: int(gguf.TokenType.UNUSED), "scores": lambda i: -1e4}
    for name, field in gguf.GGUFReader(path).fields.items():
        key = name.removeprefix("tokenizer.ggml.")
        if not name.startswith("tokenizer.") or key == "tokenizer.chat_template":
            continue
        value = field.contents()
        if key in fill:
            value += [fill[key](i) for i in range(vocab - len(value))]
        out.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)


def write(shape, wanted, path, layers=None, tokenizer_of=None):
    """Writes the file."""
    s = SimpleNamespace(**SHAPES[shape])
    s.layers = layers or s.layers
    out = gguf.GGUFWriter(path, s.arch)
    out.add_name(f"random-{shape}")
    metadata(out, s)
    tokenizer(out, tokenizer_of, s.vocab)
    plan = []
    for layer, name, size in tensors(s):
        plain = "norm" in name or "sinks" in name or name.endswith(".bias") or name.startswith(("position", "token_types"))
        kind = Type.F32 if plain else matrix_type(name.removesuffix(".weight"), layer, s, wanted)
        elements, of_block = math.prod(size), gguf.GGML_QUANT_SIZES[kind]
        nbytes = elements // of_block[0] * of_block[1]
        bytes_of_rows = (*size[:-1], size[-1] // of_block[0] * of_block[1])
        out.add_tensor_info(name, bytes_of_rows if kind not in (Type.F32, Type.F16) else size,
                            np.dtype(np.float32 if kind == Type.F32 else np.float16 if kind == Type.F16 else np.uint8), nbytes, kind)
        plan.append((name, size, kind, plain, nbytes))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_ti_data_to_file()
    pools, start = {}, 0
    for name, size, kind, plain, nbytes in plan:
        if plain:
            # Norms are 1 and biases small; gemma3's are stored with the 1 that its formula adds.
            values = np.full(size, 0.01 if name.endswith("bias") or "sinks" in name else 1, np.float32)
            data = values.view(np.uint8).reshape(-1)
        else:
            # An embedding has deviation 1, unless it is the output matrix too; routers choose clearly.
            deviation = 1.0 if name.startswith("token_embd") and not s.tied else size[-1] ** -0.5
            key = (kind, deviation)
            if key not in pools:
                pools[key] = blocks(kind, deviation)
            pool, of = pools[key], gguf.GGML_QUANT_SIZES[kind][1]
            data, at = np.empty(nbytes, np.uint8), 0
            while at < nbytes:
                start = (start * 7 + 12345) % (len(pool) // 2)
                part = pool[start:start + (nbytes - at) // of].reshape(-1)
                data[at:at + len(part)] = part
                at += len(part)
        out.write_tensor_data(data)
    out.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=SHAPES)
    p.add_argument("type")
    p.add_argument("out")
    p.add_argument("--layers", type=int)
    p.add_argument("--tokenizer")
    a = p.parse_args()
    write(a.shape, a.type, a.out, a.layers, a.tokenizer)


if __name__ == "__main__":
    main()
