//! What differs between the layers of a model: windows and rotary embeddings.

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
