//! Layers with a state beside the cache: their sizes, and which layers they are.

use crate::error::Result;
use crate::models::config::{Config, Keys, MAX_SIZE};

/// The recurrent layers of an architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateRule {
    /// Short convolutions of the width of the model.
    ShortConv,
    /// Linear recurrences by heads, after a convolution of queries, keys and values. `interval`: each layer whose
    /// number is a multiple has attention, if the file does not say it.
    Heads {
        /// See above; `None`: the file says it.
        interval: Option<usize>,
        /// Whether neighbouring heads of values have different key heads in GGUF files.
        tiled: bool,
    },
    /// Mamba2 instead of the attention of some layers.
    Mamba,
    /// Mamba2 beside the attention of each layer.
    MambaBeside,
    /// Layers of Mamba2, attention or a feed-forward network alone.
    MambaAlone,
}

/// What mixes a layer's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mixer {
    Attention,
    State,
    Both,
    Neither,
}

impl StateRule {
    /// Each layer of which number has attention, if the file does not say it.
    pub(crate) fn interval(self) -> Option<usize> {
        if let StateRule::Heads { interval, .. } = self { interval } else { None }
    }
}

/// The sizes of a model's recurrent layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrent {
    /// The width of the convolutions, at least 2.
    pub conv: usize,
    /// Channels of a convolution.
    pub channels: usize,
    /// The heads of a linear recurrence; `None`: there is only a convolution.
    pub heads: Option<RecurrentHeads>,
    /// Whether head i of values has key head i % groups, instead of i / (heads / groups).
    pub tiled: bool,
}

/// The heads of a linear recurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentHeads {
    /// Heads of queries and keys; divides `heads`.
    pub groups: usize,
    /// Elements of a key.
    pub key: usize,
    /// Heads of values.
    pub heads: usize,
    /// Elements of a value.
    pub value: usize,
}

impl RecurrentHeads {
    /// Elements of a token's keys, and of its values.
    pub fn widths(&self) -> [usize; 2] {
        [self.groups * self.key, self.heads * self.value]
    }
}

/// The keys of a kind of file.
pub(crate) struct StateKeys {
    /// The width of short convolutions, and that of those before recurrences.
    pub short: &'static str,
    pub conv: &'static str,
    pub groups: &'static str,
    pub key: &'static str,
    pub heads: &'static str,
    /// The elements of a value, or those of all values together.
    pub value: &'static str,
    pub inner: &'static str,
}

impl Recurrent {
    /// Reads the sizes.
    pub(crate) fn read(keys: &dyn Keys, names: &StateKeys, rule: StateRule, width: usize) -> Result<Recurrent> {
        let conv = |key: &str| -> Result<usize> {
            match keys.size(key, 64)? {
                1 => Err(keys.bad(key, "is 1, but must be from 2 to 64".into())),
                n => Ok(n),
            }
        };
        if rule == StateRule::ShortConv {
            return Ok(Recurrent { conv: conv(names.short)?, channels: width, heads: None, tiled: false });
        }
        let groups = keys.size(names.groups, MAX_SIZE)?;
        let heads = keys.size(names.heads, MAX_SIZE)?;
        if !heads.is_multiple_of(groups) {
            return Err(keys.bad(names.groups, format!("is {groups}, but must divide the {heads} heads of values")));
        }
        let value = match keys.size_opt(names.value, MAX_SIZE)? {
            Some(value) => value,
            None if names.inner.is_empty() => return Err(keys.missing(names.value)),
            None => match keys.size(names.inner, MAX_SIZE)? {
                inner if inner.is_multiple_of(heads) => inner / heads,
                inner => return Err(keys.bad(names.inner, format!("is {inner}, but must be a multiple of {heads}"))),
            },
        };
        let of_heads = RecurrentHeads { groups, key: keys.size(names.key, 256)?, heads, value };
        let [of_keys, of_values] = of_heads.widths();
        Ok(Recurrent {
            conv: conv(names.conv)?,
            channels: 2 * of_keys + of_values,
            heads: Some(of_heads),
            tiled: false,
        })
    }
}

impl Config {
    /// Sets which layers recur and which have attention.
    pub(crate) fn place_mixers(&mut self, mixer: impl Fn(usize) -> Mixer) {
        let mixers: Vec<Mixer> = (0..self.layers).map(mixer).collect();
        self.recurs = mixers.iter().map(|own| matches!(own, Mixer::State | Mixer::Both)).collect();
        self.attends = mixers.iter().map(|own| matches!(own, Mixer::Attention | Mixer::Both)).collect();
    }

    /// Bytes of the state of a sequence in all layers.
    pub fn state_bytes(&self) -> usize {
        let Some(r) = &self.recurrent else { return 0 };
        let heads = r.heads.map_or(0, |h| h.heads * h.value * h.key);
        let layers = self.recurs.iter().filter(|recurs| **recurs).count();
        layers * ((r.conv - 1) * r.channels + heads) * size_of::<f32>()
    }
}
