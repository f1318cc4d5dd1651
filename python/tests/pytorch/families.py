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


def t5():
    return tf.T5ForConditionalGeneration(
        tf.T5Config(
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            vocab_size=100,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        )  # fmt: skip
    )


def bart():
    return tf.BartForConditionalGeneration(
        tf.BartConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=100,
            max_position_embeddings=64,
            dropout=0.0,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            forced_eos_token_id=2,
            decoder_start_token_id=2,
        )  # fmt: skip
    )


def whisper():
    return tf.WhisperForConditionalGeneration(
        tf.WhisperConfig(
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            vocab_size=100,
            num_mel_bins=8,
            max_source_positions=16,
            max_target_positions=32,
            dropout=0.0,
            bos_token_id=1,
            eos_token_id=2,
            pad_token_id=0,
            decoder_start_token_id=1,
            suppress_tokens=[],
            begin_suppress_tokens=[],
        )  # fmt: skip
    )


def sounds():
    return {"input_features": torch.randn(2, 8, 32), "labels": torch.randint(3, 100, (2, 6))}


SWIN = {
    "image_size": 32, "patch_size": 4, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4,
    "drop_path_rate": 0.0, **NO_DROPOUT,
}  # fmt: skip
CONVNEXT = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "drop_path_rate": 0.0}

#: More families, which must run as well.
MORE = {
    "gemma": (decoder("Gemma", head_dim=8), tokens()),
    "phi": (decoder("Phi", resid_pdrop=0.0, embd_pdrop=0.0, attention_dropout=0.0), tokens()),
    "gpt_neox": (decoder("GPTNeoX", num_key_value_heads=4), tokens()),
    "opt": (decoder("OPT", ffn_dim=64, dropout=0.0, word_embed_proj_dim=32), tokens()),
    "bloom": (decoder("Bloom", n_layer=2, n_head=4, hidden_dropout=0.0, attention_dropout=0.0), tokens()),
    "falcon": (decoder("Falcon", hidden_dropout=0.0, attention_dropout=0.0), tokens()),
    "starcoder2": (decoder("Starcoder2", residual_dropout=0.0, embedding_dropout=0.0), tokens()),
    "olmo": (decoder("Olmo"), tokens()),
    "granite": (decoder("Granite"), tokens()),
    "mixtral": (decoder("Mixtral", num_local_experts=4, experts_implementation="eager"), tokens()),
    "roberta": (encoder("Roberta"), tokens()),
    "distilbert": (
        encoder("DistilBert", dim=32, hidden_dim=64, n_heads=4, n_layers=2, dropout=0.0, attention_dropout=0.0),
        tokens(),
    ),
    "albert": (encoder("Albert", embedding_size=16, hidden_dropout_prob=0.0), tokens()),
    "electra": (encoder("Electra", embedding_size=16), tokens()),
    "t5": (t5, tokens()),
    "bart": (bart, tokens()),
    "whisper": (whisper, sounds),
    "swin": (classifier("Swin", SWIN), images()),
    "convnext": (classifier("ConvNext", CONVNEXT), images()),
}
