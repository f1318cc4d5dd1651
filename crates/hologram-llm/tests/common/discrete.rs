//! A device with separate memory and its own weight layouts, like a GPU: the CPU behind such a device's interface.

use std::collections::BTreeSet;
use std::sync::Mutex;

use hologram_backends::cpu::CpuBackend;
use hologram_backends::{
    Backend, BackendError, Buffer, DType, Extent, ForeignMemory, KernelSpec, Kernels, Pipeline, Policy, Preference,
    Result, pass_on,
};

/// A device that shares no memory with the host, reads weights in planes, multiplies in `bf16` in steps of more than 4
/// tokens, and prefers fixed sizes for steps whose number of tokens is a power of two.
pub struct Discrete {
    cpu: CpuBackend,
    policy: Policy,
    /// The free memory that it reports.
    left: Option<u64>,
    /// The sizes of fixed-size steps whose attention was requested.
    fixed: Mutex<BTreeSet<usize>>,
}

impl Discrete {
    pub fn new(threads: usize, left: Option<u64>) -> Discrete {
        // F16 weights keep f32 activations.
        let weights: fn(DType, usize) -> bool = |w, _| w == w.in_planes() && w != DType::F16;
        let bf16 = |tokens| Preference { format: DType::BF16, weights, tokens };
        let policy = Policy {
            weight_layout: |format| format.recoded().in_planes(),
            activations: vec![bf16(5..=usize::MAX)],
            attention: vec![bf16(0..=usize::MAX)],
            cache: Some(DType::F16),
            ..Policy::default()
        };
        Discrete { cpu: CpuBackend::new(Some(threads)).unwrap(), policy, left, fixed: Mutex::default() }
    }

    /// The sizes of the fixed-size steps that ran.
    #[allow(dead_code, reason = "not every test has such steps")]
    pub fn fixed_steps(&self) -> BTreeSet<usize> {
        self.fixed.lock().unwrap().clone()
    }
}

impl Backend for Discrete {
    pass_on!(self => self.cpu;
        info is_available measure streams allocate_buffer allocate_pool owns copy_to_buffer copy_from_buffer
        copy_buffer clear_error record submit wait synchronize);

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
        // Only attention has six operands.
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
