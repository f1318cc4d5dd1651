//! What suits a device, as data.

use std::ops::RangeInclusive;

use crate::Format;

/// What suits a device. Graphs and models are built by it, so that no kernel makes these choices by itself.
#[derive(Clone, Debug)]
pub struct Policy {
    /// Whether the host's memory is the device's, so that [`Backend::wrap`](crate::Backend::wrap) copies nothing.
    pub shares_host_memory: bool,
    /// How many neighbouring elements a thread of an elementwise program should work on: 1, or 4 where a device moves four elements
    /// with one instruction.
    pub elements_per_thread: u32,
    /// The layout in which kernels read weights of a format, holding the same values. Weights are converted once, when they are loaded.
    pub weight_layout: fn(Format) -> Format,
    /// Formats of a product's activations, first match first.
    pub activations: Vec<Preference>,
    /// Formats of attention's products, first match first.
    pub attention: Vec<Preference>,
    /// The format of a model's cache of keys and values that suits best, where a model offers it.
    pub cache: Option<Format>,
}

/// A format that suits a device in some steps.
#[derive(Clone, Debug)]
pub struct Preference {
    /// The format.
    pub format: Format,
    /// The weights that it suits.
    pub weights: fn(Format) -> bool,
    /// The greatest numbers of tokens of the steps that it suits.
    pub tokens: RangeInclusive<usize>,
}

impl Default for Policy {
    /// Of a device that takes everything as it comes.
    fn default() -> Policy {
        Policy {
            shares_host_memory: false,
            elements_per_thread: 1,
            weight_layout: |format| format,
            activations: Vec::new(),
            attention: Vec::new(),
            cache: None,
        }
    }
}

impl Policy {
    /// See [`Policy::weight_layout`](Policy#structfield.weight_layout).
    pub fn weight_layout(&self, format: Format) -> Format {
        (self.weight_layout)(format)
    }

    /// Which of several formats of activations (the first is the most natural) suits a product with weights of this layout in a step
    /// of up to `tokens` tokens. The graph then says so: it is never a kernel's own choice.
    pub fn activations(&self, weights: Format, tokens: usize, choices: &[Format]) -> Option<Format> {
        choose(&self.activations, |p| (p.weights)(weights) && p.tokens.contains(&tokens), choices)
    }

    /// Which of several formats (the first is the most precise) attention's products suit in a step of up to `tokens` tokens. The graph
    /// then says so, as with [`Policy::activations`](Policy::activations()).
    pub fn attention_products(&self, tokens: usize, choices: &[Format]) -> Option<Format> {
        choose(&self.attention, |p| p.tokens.contains(&tokens), choices)
    }

    /// Which of several formats (the first is the most precise) suits a model's cache of keys and values.
    pub fn cache_format(&self, choices: &[Format]) -> Option<Format> {
        self.cache.filter(|format| choices.contains(format)).or(choices.first().copied())
    }
}

/// The first format that suits and can be chosen, else the first choice.
fn choose(preferences: &[Preference], suits: impl Fn(&Preference) -> bool, choices: &[Format]) -> Option<Format> {
    let suiting = preferences.iter().filter(|p| suits(p)).map(|p| p.format);
    suiting.into_iter().find(|format| choices.contains(format)).or(choices.first().copied())
}
