//! Options for the experts of mixtures.

use clap::Args;
use hologram_llm::{ExpertPlace, LoadOptions};

/// Options of commands that run a model which may be a mixture of experts.
#[derive(Args, Clone, Default)]
pub struct ExpertsArgs {
    /// Where the experts of a mixture are computed: auto takes the CPU, with their weights in the host's memory, if the
    /// model does not fit into the GPU's [default: auto]
    #[arg(long, value_name = "D", value_enum)]
    pub experts: Option<Place>,
}

/// Where experts are computed.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Place {
    /// On the GPU if all weights fit into its memory, else on the CPU
    Auto,
    /// On the GPU
    Gpu,
    /// On the CPU
    Cpu,
}

impl ExpertsArgs {
    /// How a model is loaded; `threads` are those of the CPU.
    pub fn options(&self, threads: Option<u32>) -> LoadOptions<'static> {
        let experts = match self.experts {
            None | Some(Place::Auto) => ExpertPlace::Auto,
            Some(Place::Gpu) => ExpertPlace::Gpu,
            Some(Place::Cpu) => ExpertPlace::Cpu,
        };
        LoadOptions { experts, threads: threads.map(|n| n as usize), ..LoadOptions::default() }
    }
}
