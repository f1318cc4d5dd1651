//! What differs between the layers of a model: windows, heads, caches and rotary embeddings.

use crate::error::Result;
use crate::models::Varied;
use crate::models::config::{Config, Keys};

/// Which layers have a sliding window, if there is one and the file does not list the layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// None.
    Never,
    /// All.
    All,
    /// In folders those from `max_window_layers` on, if `use_sliding_window` is set; in GGUF files all.
    Last,
    /// All except each `n`-th: layers n - 1, 2n - 1 and so on see all positions.
    AllExceptEach(usize),
    /// All except each `n`-th, from the first on: layers 0, n, 2n and so on see all positions.
    ExceptEach(usize),
}

impl Windows {
    /// Whether a layer has a window.
    pub(crate) fn slides(self, layer: usize) -> bool {
        match self {
            Windows::Never => false,
            Windows::All | Windows::Last => true,
            Windows::AllExceptEach(n) => !(layer + 1).is_multiple_of(n.max(1)),
            Windows::ExceptEach(n) => !layer.is_multiple_of(n.max(1)),
        }
    }
}

/// The heads of keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadSizes {
    /// Their number.
    pub kv_heads: usize,
    /// Their elements.
    pub head_dim: usize,
}

impl Config {
    /// The heads of keys and values of a layer.
    pub(crate) fn heads_of(&self, layer: usize) -> HeadSizes {
        let all = HeadSizes { kv_heads: self.kv_heads, head_dim: self.head_dim };
        self.windowed.filter(|_| self.slides(layer)).unwrap_or(all)
    }

    /// The layer whose keys and values a layer reads: itself, or the last of its kind before those that share.
    pub(crate) fn cache_layer(&self, layer: usize) -> usize {
        let first = self.layers.saturating_sub(self.sharing);
        match layer < first {
            true => layer,
            false => (0..first).rev().find(|own| self.slides(*own) == self.slides(layer)).unwrap_or(layer),
        }
    }

    /// Sets how many vectors a token has in the residual stream, if the file says it.
    pub(crate) fn place_branches(&mut self, keys: &dyn Keys, [count, active]: [&str; 2]) -> Result<()> {
        if self.architecture.varied != Varied::Sharing {
            return Ok(());
        }
        self.branches = keys.size(count, 64)?;
        match keys.unsigned(active)? {
            None | Some(0) => Ok(()),
            Some(n) => Err(keys.bad(active, format!("is {n}, but must be 0"))),
        }
    }

    fn slides(&self, layer: usize) -> bool {
        self.windows.get(layer).is_some_and(Option::is_some)
    }

    /// Sets the heads of layers with a window and of those without, from those of each layer. `key`: the file's key for
    /// messages.
    pub(crate) fn place_heads(&mut self, keys: &dyn Keys, key: &str, sizes: &[HeadSizes]) -> Result<()> {
        let of_kind = |slides: bool| -> Result<Option<HeadSizes>> {
            let mut own = (0..self.layers).zip(sizes).filter(|(i, _)| self.slides(*i) == slides).map(|(_, own)| *own);
            let first = own.next();
            match own.find(|own| Some(*own) != first) {
                None => Ok(first),
                Some(_) => Err(keys.bad(key, "differs between layers of one kind, which is not supported".into())),
            }
        };
        let [windowed, full] = [of_kind(true)?, of_kind(false)?];
        for HeadSizes { kv_heads, head_dim } in windowed.iter().chain(&full) {
            if *kv_heads == 0 || !self.heads.is_multiple_of(*kv_heads) {
                let reason = format!("gives {kv_heads} heads of keys, which must divide the {} of queries", self.heads);
                return Err(keys.bad(key, reason));
            }
            if *head_dim == 0 || !head_dim.is_multiple_of(2) {
                return Err(keys.bad(key, format!("gives a head size of {head_dim}, which must be even and not 0")));
            }
        }
        if let Some(all) = full.or(windowed) {
            (self.kv_heads, self.head_dim, self.rope_dim) = (all.kv_heads, all.head_dim, all.head_dim);
        }
        self.windowed = windowed.filter(|own| full.is_some_and(|full| full != *own));
        Ok(())
    }

    /// Sets how many layers at the end share the keys and values of others, if the file says it.
    pub(crate) fn place_sharing(&mut self, keys: &dyn Keys, key: &str) -> Result<()> {
        let Some(n) = keys.unsigned(key)?.filter(|n| *n > 0) else { return Ok(()) };
        self.sharing = usize::try_from(n).unwrap_or(self.layers).min(self.layers);
        match (self.layers - self.sharing..self.layers).find(|layer| self.cache_layer(*layer) == *layer) {
            None => Ok(()),
            Some(layer) => Err(keys.bad(key, format!("is {n}, but no layer has keys and values for layer {layer}"))),
        }
    }
}

/// The rotary embedding of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rotary {
    /// None: the layer's attention does not depend on positions.
    None,
    /// That of the model, with its scaling.
    Scaled,
    /// Without scaling, with the base for layers that have a window.
    Local,
}

/// Which layers have a rotary embedding, and which one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RotaryLayers {
    /// All have that of the model.
    All,
    /// Each `n`-th has none, if the file does not list the layers.
    NotEach(usize),
    /// All or none, as the file says.
    AsFileSays,
    /// Those with a window; the others have none.
    Windowed,
    /// Those with a window have a base of their own, this one if the file has none. `None`: the model's base.
    LocalBase(Option<f32>),
}

impl RotaryLayers {
    /// The rotary embedding of a layer, with or without a window.
    pub(crate) fn of(self, layer: usize, windowed: bool) -> Rotary {
        match self {
            RotaryLayers::NotEach(n) if (layer + 1).is_multiple_of(n.max(1)) => Rotary::None,
            RotaryLayers::Windowed if !windowed => Rotary::None,
            RotaryLayers::LocalBase(_) if windowed => Rotary::Local,
            _ => Rotary::Scaled,
        }
    }
}
