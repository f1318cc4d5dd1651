//! A device's preferences, as data.

use std::ops::RangeInclusive;

use crate::DType;

/// A device's preferences. Graphs and models follow them, so that no kernel makes these choices itself.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Whether the device shares the host's memory, so that [`Backend::wrap`](crate::Backend::wrap) copies nothing.
    pub shares_host_memory: bool,
    /// Native kernels take tensors that begin at multiples of so many bytes.
    pub alignment: usize,
    /// Neighbouring elements per thread of an elementwise program: 1, or 4 for a device that moves four elements with
    /// one instruction.
    pub elements_per_thread: u32,
    /// The layout in which kernels read weights of a format, with the same values. Weights are converted once, when
    /// loaded.
    pub weight_layout: fn(DType) -> DType,
    /// Formats of a product's activations, first match first.
    pub activations: Vec<Preference>,
    /// Formats of the activations of products with experts' matrices that kernels of such products do not take, though
    /// those of other products do.
    pub not_of_experts: fn(DType) -> bool,
    /// Formats of attention's products, first match first.
    pub attention: Vec<Preference>,
    /// The best format of a model's cache of keys and values, if the model offers it.
    pub cache: Option<DType>,
    /// The tokens of a step of independent rows ([`Extent::Step`](crate::Extent::Step)), of which a step of fewer costs
    /// little more than it would otherwise.
    pub independent_tokens: usize,
    /// The tokens of a prompt that a step takes unless a caller wants otherwise: more would not be faster.
    pub prompt_tokens: usize,
}

/// A format that suits a device in some steps.
#[derive(Clone, Debug)]
pub struct Preference {
    /// The format; groups of 0 elements stand for whole rows.
    pub format: DType,
    /// The weights that it suits, by their layout and the elements of a row.
    pub weights: fn(DType, usize) -> bool,
    /// The maximum numbers of tokens of the steps that it suits.
    pub tokens: RangeInclusive<usize>,
}

impl Default for Policy {
    /// For a device without preferences.
    fn default() -> Policy {
        Policy {
            shares_host_memory: false,
            alignment: 1,
            elements_per_thread: 1,
            weight_layout: |format| format,
            activations: Vec::new(),
            not_of_experts: |_| false,
            attention: Vec::new(),
            cache: None,
            independent_tokens: 1,
            prompt_tokens: 512,
        }
    }
}

impl Policy {
    /// See [`Policy::weight_layout`](Policy#structfield.weight_layout).
    pub fn weight_layout(&self, format: DType) -> DType {
        (self.weight_layout)(format)
    }

    /// The best of several formats of activations (the first is the most natural) for a product with weights of this
    /// layout with rows of `k` elements, in a step of up to `tokens` tokens. The graph then states the format; a kernel
    /// never chooses it.
    pub fn activations(&self, weights: DType, k: usize, tokens: usize, choices: &[DType]) -> Option<DType> {
        choose(&self.activations, |p| (p.weights)(weights, k) && p.tokens.contains(&tokens), k, choices)
    }

    /// As [`Policy::activations`](Policy::activations()), for products with the matrices of experts.
    pub fn activations_of_experts(&self, weights: DType, k: usize, tokens: usize, choices: &[DType]) -> Option<DType> {
        let suits =
            |p: &Preference| (p.weights)(weights, k) && p.tokens.contains(&tokens) && !(self.not_of_experts)(p.format);
        choose(&self.activations, suits, k, choices)
    }

    /// The best of several formats (the first is the most precise) for attention's products in a step of up to `tokens`
    /// tokens. The graph then states it, as with [`Policy::activations`](Policy::activations()).
    pub fn attention_products(&self, tokens: usize, choices: &[DType]) -> Option<DType> {
        choose(&self.attention, |p| p.tokens.contains(&tokens), 0, choices)
    }

    /// The best of several formats (the first is the most precise) for a model's cache of keys and values.
    pub fn cache_format(&self, choices: &[DType]) -> Option<DType> {
        self.cache.filter(|format| choices.contains(format)).or(choices.first().copied())
    }
}

/// The first format that suits and can be chosen, for rows of `k` elements, else the first choice.
fn choose(
    preferences: &[Preference],
    suits: impl Fn(&Preference) -> bool,
    k: usize,
    choices: &[DType],
) -> Option<DType> {
    let whole = |format| match format {
        DType::F8Groups { group: 0 } => DType::F8Groups { group: k as u32 },
        format => format,
    };
    let suiting = preferences.iter().filter(|p| suits(p)).map(|p| whole(p.format));
    suiting.into_iter().find(|format| choices.contains(format)).or(choices.first().copied())
}
