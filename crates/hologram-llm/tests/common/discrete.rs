//! A device with memory and weight layouts of its own, as GPUs have: the CPU, that is, behind such a device's answers.

use std::collections::BTreeSet;
use std::sync::Mutex;

use hologram_backends::cpu::CpuBackend;
use hologram_backends::{
    Backend, BackendError, Buffer, Extent, ForeignMemory, Format, KernelSpec, Kernels, Pipeline, Policy, Preference,
    Result, pass_on,
};

/// A device that shares no memory with the host, reads weights in planes, multiplies in `bf16` when a step has more
/// than 4 tokens, and has a plan of its own for steps whose number of tokens is a power of two.
pub struct Discrete {
    cpu: CpuBackend,
    policy: Policy,
    /// Bytes that it says are left.
    left: Option<u64>,
    /// The tokens of the steps of fixed size whose attention was asked for.
    fixed: Mutex<BTreeSet<usize>>,
}

impl Discrete {
    pub fn new(threads: usize, left: Option<u64>) -> Discrete {
        let bf16 = |tokens| Preference { format: Format::BF16, weights: |w| w == w.in_planes(), tokens };
        let policy = Policy {
            weight_layout: Format::in_planes,
            activations: vec![bf16(5..=usize::MAX)],
            attention: vec![bf16(0..=usize::MAX)],
            cache: Some(Format::F16),
            ..Policy::default()
        };
        Discrete { cpu: CpuBackend::new(Some(threads)).unwrap(), policy, left, fixed: Mutex::default() }
    }

    /// The tokens of the steps that ran with a fixed number of them.
    #[allow(dead_code, reason = "not every test has such steps")]
    pub fn fixed_steps(&self) -> BTreeSet<usize> {
        self.fixed.lock().unwrap().clone()
    }
}

impl Backend for Discrete {
    pass_on!(self => self.cpu;
        info is_available measure allocate_buffer allocate_pool owns copy_to_buffer copy_from_buffer copy_buffer clear_error record
        submit wait synchronize);

    fn kernels(&self) -> &dyn Kernels {
        self
    }
    fn policy(&self) -> &Policy {
        &self.policy
    }
    fn wrap(&self, _: ForeignMemory) -> Result<Buffer> {
        Err(BackendError::Unsupported { device: "discrete".into(), what: "a whole file on the device".into() })
    }
    fn available_memory(&self) -> Option<u64> {
        self.left
    }
}

impl Kernels for Discrete {
    pass_on!(self => self.cpu.kernels(); compile native_group expect_weights);

    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        // Attention is what has six operands.
        if let (6, Some(Extent::Fixed(tokens))) = (spec.inputs.len(), spec.output.shape.first()) {
            self.fixed.lock().unwrap().insert(*tokens);
        }
        self.cpu.kernels().native(spec)
    }
    fn prefers_fixed(&self, spec: &KernelSpec) -> bool {
        assert!(spec.op == hologram_backends::Operation::Matmul && !spec.uses_step());
        true
    }
}
