#!/usr/bin/env python3
"""Texts per second of an encoder of random weights in ONNX Runtime, one JSON object, as `hologram bench` gives them for
a GGUF file.

    onnx_encoder.py SHAPE FOLDER [--int8] [-p 128] [-b 8] [-r 3] [--threads 2]

The graph is what ONNX Runtime's optimiser makes of a usual export: fused attention with q, k and v in one matrix, norms
with their residual, GELU with its bias. With --int8 it is quantised as by `quantize_dynamic`. Written to FOLDER once.
Needs onnx, onnxruntime, gguf.
"""
import argparse
import json
import os
import statistics
import time
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from random_model import SHAPES

MS = "com.microsoft"


def build(s, path):
    random = np.random.default_rng(1)
    nodes, weights = [], []

    def matrix(name, *size):
        values = random.standard_normal(size, dtype=np.float32) * np.float32(size[0] ** -0.5)
        weights.append(onnx.numpy_helper.from_array(values, name))
        return name

    def vector(name, size, value):
        weights.append(onnx.numpy_helper.from_array(np.full(size, value, np.float32), name))
        return name

    def node(op, inputs, output, domain=MS, **attributes):
        nodes.append(helper.make_node(op, inputs, output if isinstance(output, list) else [output], domain=domain, **attributes))

    def norm(name):
        return [vector(name + ".gamma", s.width, 1.0), vector(name + ".beta", s.width, 0.01)]

    tables = [matrix("words", s.vocab, s.width), matrix("positions", s.context, s.width), matrix("segments", 2, s.width)]
    node("EmbedLayerNormalization", ["input_ids", "segment_ids", *tables, *norm("embed")], ["x0", "mask_index"], epsilon=s.eps)
    x = "x0"
    for i in range(s.layers):
        at = lambda name: f"{i}.{name}"
        node("Attention", [x, matrix(at("qkv"), s.width, 3 * s.width), vector(at("qkv.bias"), 3 * s.width, 0.01)], at("heads"),
             num_heads=s.heads)
        node("MatMul", [at("heads"), matrix(at("output"), s.width, s.width)], at("attended"), domain="")
        node("SkipLayerNormalization", [x, at("attended"), *norm(at("norm1")), vector(at("output.bias"), s.width, 0.01)], at("x1"),
             epsilon=s.eps)
        node("MatMul", [at("x1"), matrix(at("up"), s.width, s.ffn)], at("inner"), domain="")
        node("BiasGelu", [at("inner"), vector(at("up.bias"), s.ffn, 0.01)], at("activated"))
        node("MatMul", [at("activated"), matrix(at("down"), s.ffn, s.width)], at("fed"), domain="")
        node("SkipLayerNormalization", [at("x1"), at("fed"), *norm(at("norm2")), vector(at("down.bias"), s.width, 0.01)], at("x2"),
             epsilon=s.eps)
        x = at("x2")
    ids = [helper.make_tensor_value_info(name, TensorProto.INT32, ["texts", "tokens"]) for name in ("input_ids", "segment_ids")]
    graph = helper.make_graph(nodes, "encoder", ids, [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)], ir_version=9)
    onnx.save_model(model, path, save_as_external_data=True, location=os.path.basename(path) + ".data")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("shape", choices=[name for name, s in SHAPES.items() if s["arch"] == "bert"])
    p.add_argument("folder")
    p.add_argument("--int8", action="store_true")
    p.add_argument("-p", dest="tokens", type=int, default=128)
    p.add_argument("-b", dest="batch", type=int, default=8)
    p.add_argument("-r", dest="repetitions", type=int, default=3)
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    s = SimpleNamespace(**SHAPES[a.shape])
    path = os.path.join(a.folder, a.shape + ".onnx")
    if not os.path.exists(path):
        build(s, path)
    if a.int8:
        full, path = path, os.path.join(a.folder, a.shape + "-int8.onnx")
        if not os.path.exists(path):
            from onnxruntime.quantization import quantize_dynamic

            quantize_dynamic(full, path, per_channel=True, op_types_to_quantize=["MatMul", "Attention"], use_external_data_format=True,
                             extra_options={"DefaultTensorType": TensorProto.FLOAT})
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = a.threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(2).integers(0, s.vocab, (a.batch, a.tokens), dtype=np.int32)
    feed = {"input_ids": ids, "segment_ids": np.zeros_like(ids)}
    session.run(None, feed)
    rates = []
    for _ in range(a.repetitions):
        start = time.perf_counter()
        session.run(None, feed)
        rates.append(a.batch / (time.perf_counter() - start))
    print(json.dumps({"shape": a.shape, "int8": a.int8, "texts_per_s": statistics.median(rates)}))


if __name__ == "__main__":
    main()
