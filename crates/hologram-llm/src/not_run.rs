//! Known parts of a model's files that are not run: towers for images and sound, and heads for further tokens.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::files::ModelFiles;
use crate::models::config::Config;
use crate::weights::is_of_layers;

const VISION: &str = "vision tower";
const AUDIO: &str = "audio tower";
const AHEAD: &str = "heads for further tokens";

/// What names of tensors begin with, in folders and in GGUF files. The first that fits counts.
const PARTS: [(&str, &str); 16] = [
    ("model.visual.", VISION),
    ("visual.", VISION),
    ("model.vision_tower.", VISION),
    ("vision_tower.", VISION),
    ("model.embed_vision.", VISION),
    ("model.multi_modal_projector.", VISION),
    ("multi_modal_projector.", VISION),
    ("v.", VISION),
    ("model.audio_tower.", AUDIO),
    ("audio_tower.", AUDIO),
    ("model.embed_audio.", AUDIO),
    ("mm.a.", AUDIO),
    ("a.", AUDIO),
    ("mm.", VISION),
    ("mtp.", AHEAD),
    ("model.mtp.", AHEAD),
];

/// What a tensor's name begins with if it belongs to a known part that is not run, and that part.
pub(crate) fn part(name: &str) -> Option<(&'static str, &'static str)> {
    PARTS.into_iter().find(|(start, _)| name.starts_with(start))
}

/// The range of the layers that predict further tokens.
pub(crate) fn layers_ahead(config: &Config) -> Range<usize> {
    config.layers..config.layers + config.ahead
}

impl ModelFiles {
    /// One line that names the known parts which are not run, with the beginnings of their tensors' names; `None` if
    /// all is run. `config`: the model's hyperparameters.
    pub fn not_run(&self, config: &Config) -> Option<String> {
        let (names, layers): (Vec<&str>, &[&str]) = match self {
            ModelFiles::Gguf(file) => (file.tensors().map(|t| t.name()).collect(), &["blk."]),
            ModelFiles::Folder(folder) => {
                (folder.tensors().map(|t| t.name).collect(), &["model.layers.", "model.language_model.layers."])
            }
        };
        let ahead = layers_ahead(config);
        let of = |name: &str| {
            let of_layers =
                || layers.iter().find(|start| is_of_layers(name, start, &ahead)).map(|start| (*start, AHEAD));
            part(name).or_else(of_layers)
        };
        // By part the beginnings of names, and the tensors.
        let mut parts: BTreeMap<&str, (Vec<String>, usize)> = BTreeMap::new();
        for name in names {
            let Some((start, what)) = of(name) else { continue };
            let start = match name.strip_prefix(start).and_then(|rest| rest.split('.').next()) {
                Some(layer) if what == AHEAD && layers.contains(&start) => format!("{start}{layer}.*"),
                _ => format!("{start}*"),
            };
            let (starts, tensors) = parts.entry(what).or_default();
            if !starts.contains(&start) {
                starts.push(start);
            }
            *tensors += 1;
        }
        let told = parts.into_iter().map(|(what, (starts, tensors))| {
            let counted = if tensors == 1 { "1 tensor".into() } else { format!("{tensors} tensors") };
            format!("{what} ({}, {counted})", starts.join(", "))
        });
        let told = told.collect::<Vec<_>>().join("; ");
        (!told.is_empty()).then(|| format!("not run: {told}"))
    }
}
