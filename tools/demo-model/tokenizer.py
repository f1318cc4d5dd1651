#!/usr/bin/env python3
"""Train the byte-level BPE tokenizer and encode the corpus.

    python tokenizer.py CORPUS_DIR [--vocab 6144]

Reads CORPUS_DIR/{train,valid,heldout,source}.txt (corpus.py), writes tokenizer.json and
tokens.npz (one uint16 stream per part: every document is bos, its text, eos).

The pre-tokenizer is Llama 3's regular expression, which GGUF names "llama-bpe". Under that
name a word that is itself a token is taken whole, without running the merges
(`ignore_merges`), so the tokenizer here does the same.
"""
import argparse
import json
import os

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def train(docs, vocab):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tok.decoder = decoders.ByteLevel()
    tok.train_from_iterator(docs, trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[BOS, EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    spec = json.loads(tok.to_str())
    spec["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(spec))


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("corpus")
    ap.add_argument("--vocab", type=int, default=6144)
    args = ap.parse_args()
    parts = {}
    for part in ("train", "valid", "heldout", "source"):
        with open(os.path.join(args.corpus, part + ".txt"), encoding="utf-8") as f:
            parts[part] = f.read().split("\0")
    tok = train(parts["train"], args.vocab)
    tok.save(os.path.join(args.corpus, "tokenizer.json"))
    bos, eos = tok.token_to_id(BOS), tok.token_to_id(EOS)
    out = {}
    for part, docs in parts.items():
        ids = []
        for e in tok.encode_batch(docs):
            ids += [bos, *e.ids, eos]
        out[part] = np.array(ids, dtype=np.uint16)
        nbytes = sum(len(d.encode()) for d in docs)
        out[part + "_bytes"] = np.array(nbytes)
        print(f"{part}: {len(docs)} documents, {nbytes} bytes, {len(ids)} tokens, "
              f"{nbytes / len(ids):.3f} bytes/token")
    np.savez_compressed(os.path.join(args.corpus, "tokens.npz"), **out)
    for part in ("train", "heldout"):
        assert tok.decode(tok.encode(parts[part][0]).ids) == parts[part][0]


if __name__ == "__main__":
    main()
