//! The names of tensors in folders.

use crate::models::FolderNames;

/// The tensors of a layer: the name in GGUF files, then the default name in folders.
const LAYER: [(&str, &str); 9] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

impl FolderNames {
    /// The name in folders of the tensor that GGUF files call `ours`. `base`: what names begin with.
    pub(crate) fn tensor(&self, base: &str, ours: &str) -> String {
        let named =
            |names: &[(&str, &'static str)]| names.iter().find(|(name, _)| *name == ours).map(|(_, name)| *name);
        if let Some(head) = named(self.heads) {
            return head.into();
        }
        if let Some(other) = named(self.others) {
            return format!("{base}{other}");
        }
        let of_layer = || {
            let (layer, rest) = ours.strip_prefix("blk.")?.split_once('.')?;
            let (name, kind) = rest.rsplit_once('.').unwrap_or((rest, ""));
            Some((layer, rest, name, kind))
        };
        let Some((layer, rest, name, kind)) = of_layer() else { return ours.into() };
        // Some names of GGUF files end otherwise than those of folders.
        let find = |wanted: &str| self.tensors.iter().chain(&LAYER).find(|(ours, _)| *ours == wanted);
        let found = find(rest).or_else(|| find(name));
        let name = found.map_or(name, |(_, theirs)| theirs);
        if let Some(complete) = name.strip_suffix('$') {
            return format!("{base}{}.{layer}.{complete}", self.layers);
        }
        format!("{base}{}.{layer}.{name}.{kind}", self.layers)
    }
}
