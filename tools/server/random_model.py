#!/usr/bin/env python3
"""Writes a GGUF file of random BF16 weights in the shape of an 8B Llama, with the tokenizer of another file: a model to put a
server under load with. Its texts mean nothing. Needs numpy.

    random_model.py TOKENIZER.gguf OUT.gguf
"""
import struct
import sys

import numpy as np

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, VOCAB = 32, 4096, 14336, 32, 8, 128256
# Types of values in GGUF's metadata, and of tensors: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
U32, I32, F32, TEXT, LIST = 4, 5, 6, 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
TENSOR_F32, TENSOR_BF16 = 0, 30
UNUSED = 5
ALIGNMENT = 32


def end_of(data, kind, at):
    """Where a value ends."""
    if kind == TEXT:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind == LIST:
        kind, count = struct.unpack_from("<IQ", data, at)
        at += 12
        for _ in range(count):
            at = end_of(data, kind, at)
        return at
    return at + SIZES[kind]


def metadata(data):
    """The metadata of a file: types and bytes by name."""
    at, values = 24, {}
    for _ in range(struct.unpack_from("<Q", data, 16)[0]):
        length = struct.unpack_from("<Q", data, at)[0]
        name, at = data[at + 8:at + 8 + length].decode(), at + 8 + length
        kind = struct.unpack_from("<I", data, at)[0]
        end = end_of(data, kind, at + 4)
        values[name], at = (kind, data[at + 4:end]), end
    return values


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def grown(value, extra):
    """A list with more elements, which are in `extra`."""
    kind, data = value
    of, count = struct.unpack_from("<IQ", data)
    return kind, struct.pack("<IQ", of, count + len(extra)) + data[12:] + b"".join(extra)


def main():
    source, out = sys.argv[1:]
    with open(source, "rb") as file:
        values = metadata(file.read())
    values = {k: v for k, v in values.items() if k.startswith("tokenizer.") and k != "tokenizer.chat_template"}
    tokens = struct.unpack_from("<IQ", values["tokenizer.ggml.tokens"][1])[1]
    extra = range(VOCAB - tokens)
    for name, fill in [("tokens", lambda i: text(f"<|unused{i}|>")), ("token_type", lambda i: struct.pack("<i", UNUSED)),
                       ("scores", lambda i: struct.pack("<f", -1e4))]:
        if f"tokenizer.ggml.{name}" in values:
            values[f"tokenizer.ggml.{name}"] = grown(values[f"tokenizer.ggml.{name}"], [fill(i) for i in extra])
    values |= {"general.architecture": (TEXT, text("llama")), "general.name": (TEXT, text("random-8b"))}
    for name, n in [("block_count", LAYERS), ("context_length", 131072), ("embedding_length", HIDDEN), ("feed_forward_length", INNER),
                    ("attention.head_count", HEADS), ("attention.head_count_kv", KV_HEADS), ("vocab_size", VOCAB),
                    ("rope.dimension_count", HIDDEN // HEADS)]:
        values[f"llama.{name}"] = (U32, struct.pack("<I", n))
    for name, x in [("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 500000.0)]:
        values[f"llama.{name}"] = (F32, struct.pack("<f", x))
    kv = HIDDEN // HEADS * KV_HEADS
    layer = [("attn_norm", (HIDDEN,)), ("attn_q", (HIDDEN, HIDDEN)), ("attn_k", (HIDDEN, kv)), ("attn_v", (HIDDEN, kv)),
             ("attn_output", (HIDDEN, HIDDEN)), ("ffn_norm", (HIDDEN,)), ("ffn_gate", (HIDDEN, INNER)), ("ffn_up", (HIDDEN, INNER)),
             ("ffn_down", (INNER, HIDDEN))]
    tensors = [("token_embd", (HIDDEN, VOCAB)), ("output_norm", (HIDDEN,)), ("output", (HIDDEN, VOCAB))]
    tensors += [(f"blk.{i}.{name}", shape) for i in range(LAYERS) for name, shape in layer]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    head += b"".join(text(k) + struct.pack("<I", kind) + data for k, (kind, data) in values.items())
    at = 0
    for name, shape in tensors:
        kind = TENSOR_F32 if len(shape) == 1 else TENSOR_BF16
        head += text(f"{name}.weight") + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", kind, at)
        at += int(np.prod(shape)) * (4 if len(shape) == 1 else 2)
    # Bytes of every tensor are a multiple of the alignment. Parts of one random array, from different places, fill them.
    random = np.random.default_rng(1).standard_normal(1 << 26, dtype=np.float32) * HIDDEN**-0.5
    random = (random.view(np.uint32) >> 16).astype(np.uint16)
    with open(out, "wb") as file:
        file.write(head + bytes(-len(head) % ALIGNMENT))
        start = 0
        for _, shape in tensors:
            left = int(np.prod(shape))
            if len(shape) == 1:
                file.write(np.ones(left, np.float32))
                continue
            while left:
                start = (start * 7 + 12345) % (len(random) // 2)
                part = random[start:start + left]
                file.write(part)
                left -= len(part)


main()
