//! Which type each tensor gets: the rules of llama.cpp's `llama-quantize` for models of the Llama kind.

use hologram_backends::DType;

use crate::gguf::GgufFile;
use crate::models::config::Config;

/// A type or a mixture that a file can be quantized to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recipe {
    /// The name, such as `Q4_K_M`.
    pub name: &'static str,
    /// `general.file_type`.
    pub file_type: u32,
    /// The type of most matrices.
    most: DType,
}

const fn recipe(name: &'static str, file_type: u32, most: DType) -> Recipe {
    Recipe { name, file_type, most }
}

impl Recipe {
    /// All of them.
    pub const ALL: [Recipe; 23] = [
        recipe("F32", 0, DType::F32),
        recipe("F16", 1, DType::F16),
        recipe("BF16", 32, DType::BF16),
        recipe("Q8_0", 7, DType::Q8_0),
        recipe("Q6_K", 18, DType::Q6_K),
        recipe("Q5_K_M", 17, DType::Q5_K),
        recipe("Q5_K_S", 16, DType::Q5_K),
        recipe("Q5_1", 9, DType::Q5_1),
        recipe("Q5_0", 8, DType::Q5_0),
        recipe("Q4_K_M", 15, DType::Q4_K),
        recipe("Q4_K_S", 14, DType::Q4_K),
        recipe("IQ4_XS", 30, DType::IQ4_XS),
        recipe("IQ4_NL", 25, DType::IQ4_NL),
        recipe("Q4_1", 3, DType::Q4_1),
        recipe("Q4_0", 2, DType::Q4_0),
        recipe("MXFP4", 38, DType::MXFP4),
        recipe("Q3_K_L", 13, DType::Q3_K),
        recipe("Q3_K_M", 12, DType::Q3_K),
        recipe("Q3_K_S", 11, DType::Q3_K),
        recipe("Q2_K", 10, DType::Q2_K),
        recipe("Q2_K_S", 21, DType::Q2_K),
        recipe("TQ2_0", 37, DType::TQ2_0),
        recipe("TQ1_0", 36, DType::TQ1_0),
    ];

    /// The recipe with this name, in any case. `Q3_K`, `Q4_K` and `Q5_K` mean their `_M` mixtures.
    pub fn from_name(name: &str) -> Option<Recipe> {
        let is = |wanted: &str| Recipe::ALL.into_iter().find(|recipe| recipe.name.eq_ignore_ascii_case(wanted));
        is(name).or_else(|| is(&format!("{name}_M")))
    }

    /// The type of most matrices.
    pub fn format(self) -> DType {
        self.most
    }

    /// Whether all matrices have one type.
    fn is_plain(self) -> bool {
        matches!(self.most, DType::Plain(_)) || self.most == DType::Q8_0
    }
}

/// What the rules need to know of a model.
pub struct Facts {
    layers: usize,
    /// Query heads per key head.
    shared: usize,
    experts: usize,
    has_output: bool,
    falcon: bool,
    weighted: bool,
}

impl Facts {
    /// Of a file; `weighted`: with an importance matrix.
    pub fn of(file: &GgufFile, weighted: bool) -> Facts {
        let architecture = file.architecture().unwrap_or_default();
        let key = |name: &str| file.get_opt::<usize>(&format!("{architecture}.{name}")).ok().flatten();
        let heads = key("attention.head_count").unwrap_or(1);
        Facts {
            layers: key("block_count").unwrap_or(0),
            shared: heads / key("attention.head_count_kv").unwrap_or(heads).max(1),
            experts: key("expert_count").unwrap_or(0),
            has_output: file.tensor_opt("output.weight").is_some(),
            falcon: architecture == "falcon",
            weighted,
        }
    }

    /// Of a model; `weighted`: with an importance matrix.
    pub fn of_config(c: &Config, has_output: bool, weighted: bool) -> Facts {
        let experts = c.experts.as_ref().map_or(0, |experts| experts.count);
        let shared = c.heads / c.kv_heads.max(1);
        Facts { layers: c.layers, shared, experts, has_output, falcon: false, weighted }
    }

    /// The type of a tensor; `None`: as it is in the file.
    pub fn choose(&self, recipe: Recipe, name: &str, shape: &[usize]) -> Option<DType> {
        // Small matrices, and those on which much depends.
        let kept = [
            "_norm.weight",
            "ffn_gate_inp.weight",
            "ssm_conv1d.weight",
            "shortconv.conv.weight",
            "position_embd.weight",
            "token_types.weight",
            "per_layer_model_proj.weight",
        ];
        let is_kept = kept.iter().any(|end| name.ends_with(end)) || name.contains("altup") || name.contains("laurel");
        if shape.len() < 2 || !name.ends_with("weight") || is_kept {
            return None;
        }
        let wanted = if recipe.is_plain() { recipe.most } else { self.mixed(recipe, name) };
        Some(fitting(wanted, shape.last().copied().unwrap_or(1)))
    }

    fn mixed(&self, recipe: Recipe, name: &str) -> DType {
        let (most, is) = (recipe.most, |names: &[&str]| names.contains(&recipe.name));
        let mut parts = name.split('.');
        let layer = parts.next().filter(|first| *first == "blk").and_then(|_| parts.next()?.parse::<usize>().ok());
        let Some(i) = layer else {
            let output = name == "output.weight" || name == "token_embd.weight" && !self.has_output;
            return match most {
                DType::MXFP4 => DType::Q8_0,
                _ if output => DType::Q6_K,
                DType::TQ1_0 | DType::TQ2_0 if name == "token_embd.weight" => DType::Q4_K,
                _ => most,
            };
        };
        let n = self.layers;
        let eighth = i < n / 8;
        let better = eighth || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
        match parts.next().unwrap_or_default() {
            "attn_v" | "attn_k" if self.experts == 8 => DType::Q8_0,
            "attn_v" => match recipe.name {
                "Q2_K" if self.shared >= 4 => DType::Q4_K,
                "Q2_K" => DType::Q3_K,
                "Q2_K_S" if self.shared >= 4 => DType::Q4_K,
                "Q3_K_M" if i < 2 => DType::Q5_K,
                "Q3_K_M" => DType::Q4_K,
                "Q3_K_L" => DType::Q5_K,
                "IQ4_NL" | "IQ4_XS" if self.shared >= 4 => DType::Q5_K,
                "Q4_K_M" | "Q5_K_M" if better => DType::Q6_K,
                "Q4_K_S" if i < 4 => DType::Q5_K,
                // Models of 70 B: eight heads share these small matrices.
                _ if n == 80 && self.shared == 8 && matches!(most, DType::Q3_K | DType::Q4_K) => DType::Q5_K,
                _ => most,
            },
            part if part.starts_with("ffn_down") => match recipe.name {
                "Q2_K" => DType::Q3_K,
                "Q2_K_S" if eighth => DType::Q4_K,
                "Q3_K_M" if i < n / 16 => DType::Q5_K,
                "Q3_K_M" if !self.falcon || better => DType::Q4_K,
                "Q3_K_L" => {
                    if self.falcon {
                        DType::Q4_K
                    } else {
                        DType::Q5_K
                    }
                }
                "Q4_K_M" if self.falcon => {
                    if i < n / 16 {
                        DType::Q6_K
                    } else if better {
                        DType::Q5_K
                    } else {
                        DType::Q4_K
                    }
                }
                "Q4_K_M" | "Q5_K_M" if better => DType::Q6_K,
                "IQ4_NL" | "IQ4_XS" if eighth && !self.weighted => DType::Q5_K,
                "Q4_K_S" if eighth && !self.falcon => DType::Q5_K,
                "Q4_0" if eighth && self.weighted => DType::Q4_1,
                "Q5_0" if eighth && self.weighted => DType::Q5_1,
                _ => most,
            },
            "attn_output" if self.falcon => {
                if is(&["Q3_K_L"]) {
                    DType::Q4_K
                } else {
                    most
                }
            }
            "attn_output" if self.experts == 8 => {
                let few = matches!(most, DType::Q2_K | DType::Q3_K | DType::Q4_K | DType::IQ4_NL | DType::IQ4_XS);
                if few && !is(&["Q2_K_S"]) { DType::Q5_K } else { most }
            }
            "attn_output" => match recipe.name {
                "Q2_K" => DType::Q3_K,
                "Q3_K_M" => DType::Q4_K,
                "Q3_K_L" => DType::Q5_K,
                _ => most,
            },
            "attn_qkv" => match recipe.name {
                "Q3_K_M" | "Q3_K_L" => DType::Q4_K,
                "Q4_K_M" => DType::Q5_K,
                "Q5_K_M" => DType::Q6_K,
                _ => most,
            },
            _ => most,
        }
    }
}

/// The type, or the nearest with shorter blocks if a row is not whole blocks of it.
pub(crate) fn fitting(wanted: DType, row_len: usize) -> DType {
    let fits = |format: DType| row_len.is_multiple_of(format.block_len());
    if fits(wanted) {
        return wanted;
    }
    let shorter = match wanted {
        DType::Q2_K | DType::Q3_K | DType::IQ4_XS | DType::Grid(_) => DType::IQ4_NL,
        DType::Q4_K => DType::Q5_0,
        DType::Q5_K => DType::Q5_1,
        DType::Q6_K => DType::Q8_0,
        DType::TQ1_0 | DType::TQ2_0 => DType::Q4_0,
        other => other,
    };
    if fits(shorter) { shorter } else { DType::F16 }
}
