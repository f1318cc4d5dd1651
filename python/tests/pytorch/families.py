"""Small models of the families of transformers with random weights, and inputs for them."""

import torch
import transformers as tf

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def tokens(**more):
    return lambda: {"input_ids": (ids := torch.randint(3, 100, (2, 12))), "labels": ids, **more}


def images(size=32, labels=3):
    return lambda: {"pixel_values": torch.randn(2, 3, size, size), "labels": torch.randint(0, labels, (2,))}


def decoder(name, **more):
    """A causal model whose configuration has the usual names."""

    def make():
        config = getattr(tf, f"{name}Config")(**{**GROUPED, **more})
        return getattr(tf, f"{name}ForCausalLM")(config)

    return make


def encoder(name, head="ForMaskedLM", **more):
    def make():
        config = getattr(tf, f"{name}Config")(**{**SMALL, **NO_DROPOUT, **more})
        return getattr(tf, f"{name}{head}")(config)

    return make


def classifier(name, config):
    return lambda: getattr(tf, f"{name}ForImageClassification")(
        getattr(tf, f"{name}Config")(**{"num_labels": 3, **config})
    )


def gpt2():
    config = tf.GPT2Config(
        n_layer=2, n_head=4, n_embd=32, vocab_size=100, n_positions=64, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return tf.GPT2LMHeadModel(config)


VIT = {**SMALL, **NO_DROPOUT, "image_size": 32, "patch_size": 8}
RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}

#: Name: the function that makes the model, and the one that makes inputs.
MUST = {
    "gpt2": (gpt2, tokens()),
    "llama": (decoder("Llama"), tokens()),
    "mistral": (decoder("Mistral"), tokens()),
    "qwen2": (decoder("Qwen2"), tokens()),
    "qwen3": (decoder("Qwen3", head_dim=8), tokens()),
    "bert": (encoder("Bert"), tokens()),
    "vit": (classifier("ViT", VIT), images()),
    "resnet": (classifier("ResNet", RESNET), images()),
}
