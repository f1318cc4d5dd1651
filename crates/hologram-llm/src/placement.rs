//! Which device has the experts of a mixture.

use hologram_backends::BackendType;
use hologram_core::Executor;

use crate::error::{LlmError, Result};
use crate::lora::Adapter;
use crate::weights::check_memory;

/// How a model is loaded.
#[derive(Clone, Default)]
pub struct LoadOptions<'a> {
    /// Adapters, whose effects are added up.
    pub adapters: &'a [Adapter],
    /// Where the experts are computed of which each token uses a few.
    pub experts: ExpertPlace,
    /// Threads of the CPU that computes experts; `None`: one per physical core.
    pub threads: Option<usize>,
    /// The device that computes experts in place of the machine's CPU.
    pub host: Option<Executor>,
}

/// Where experts are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpertPlace {
    /// On the model's device if all weights fit into its memory, else on the CPU.
    #[default]
    Auto,
    /// On the model's device, a GPU.
    Gpu,
    /// On the CPU, with their weights in the host's memory.
    Cpu,
}

/// Bytes of a model's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// All but the experts.
    pub rest: u64,
    /// The matrices of experts of which each token uses a few.
    pub experts: u64,
}

impl Bytes {
    /// Both together.
    pub fn all(self) -> u64 {
        self.rest + self.experts
    }
}

/// The part of the free memory that experts leave for the cache and for what steps compute: one of so many.
const LEFT: u64 = 16;

impl LoadOptions<'_> {
    /// Chooses the device of the experts, `None` for that of the model, and checks that the weights fit. `model` is the
    /// name in messages; `on` gives the bytes of weights on a device, or more if they are not `exact`.
    ///
    /// # Errors
    /// When the choice has no meaning for the model or its device, or memory is too small.
    pub(crate) fn place(
        &self,
        executor: &Executor,
        (model, exact): (&str, bool),
        on: impl Fn(&Executor) -> Bytes,
    ) -> Result<Option<Executor>> {
        let wrong = |reason: &str| Err(LlmError::Option { option: "experts", reason: reason.into() });
        let bytes = on(executor);
        let is_host = matches!(executor.info().backend, BackendType::Cpu | BackendType::Reference);
        let apart = match self.experts {
            ExpertPlace::Gpu if is_host && self.host.is_none() => return wrong("is gpu, but the device is the CPU"),
            ExpertPlace::Auto | ExpertPlace::Gpu if bytes.experts == 0 => false,
            ExpertPlace::Cpu if bytes.experts == 0 => return wrong("is cpu, but the model has no experts"),
            ExpertPlace::Gpu => false,
            // They are there.
            ExpertPlace::Auto | ExpertPlace::Cpu if is_host && self.host.is_none() => false,
            ExpertPlace::Cpu => true,
            ExpertPlace::Auto => {
                executor.backend().available_memory().is_some_and(|free| bytes.all() > free - free / LEFT)
            }
        };
        let check = |executor: &Executor, part: &str, needed: u64| match exact {
            true => check_memory(executor, part, needed),
            // Each matrix is checked as it is allocated.
            false => Ok(()),
        };
        if !apart {
            check(executor, model, bytes.all())?;
            return Ok(None);
        }
        check(executor, &format!("{model} without its experts"), bytes.rest)?;
        let host = match &self.host {
            Some(host) => host.clone(),
            None => Executor::open("cpu", self.threads)?,
        };
        check(&host, &format!("the part of {model} with experts"), on(&host).experts)?;
        Ok(Some(host))
    }
}
