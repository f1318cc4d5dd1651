//! A device with separate memory and its own weight layouts, like a GPU: the CPU behind such a device's interface.

use std::collections::BTreeSet;
use std::sync::Mutex;

use hologram_backends::cpu::CpuBackend;
use hologram_backends::{
    Backend, BackendError, Buffer, CommandList, DeviceInfo, Event, Extent, ForeignMemory, Format, KernelSpec, Launch,
    Metrics, Pipeline, Result,
};
use hologram_isa::Program;

/// A device that shares no memory with the host, reads weights in planes, multiplies in `bf16` in steps of more than 4
/// tokens, and prefers fixed sizes for steps whose number of tokens is a power of two.
pub struct Discrete {
    cpu: CpuBackend,
    /// The free memory that it reports.
    left: Option<u64>,
    /// The sizes of fixed-size steps whose attention was requested.
    fixed: Mutex<BTreeSet<usize>>,
}

impl Discrete {
    pub fn new(threads: usize, left: Option<u64>) -> Discrete {
        Discrete { cpu: CpuBackend::new(Some(threads)).unwrap(), left, fixed: Mutex::default() }
    }

    /// The sizes of the fixed-size steps that ran.
    #[allow(dead_code, reason = "not every test has such steps")]
    pub fn fixed_steps(&self) -> BTreeSet<usize> {
        self.fixed.lock().unwrap().clone()
    }
}

impl Backend for Discrete {
    fn wrap(&self, _: ForeignMemory) -> Result<Buffer> {
        Err(BackendError::Unsupported { device: "discrete".into(), what: "a whole file on the device".into() })
    }
    fn available_memory(&self) -> Option<u64> {
        self.left
    }
    fn weight_layout(&self, format: Format) -> Format {
        format.in_planes()
    }
    fn activations(&self, weights: Format, tokens: usize, choices: &[Format]) -> Option<Format> {
        assert_eq!(weights, weights.in_planes());
        choices.iter().find(|f| tokens > 4 && **f == Format::BF16).or(choices.first()).copied()
    }
    fn attention_products(&self, _: usize, choices: &[Format]) -> Option<Format> {
        choices.last().copied()
    }
    fn cache_format(&self, choices: &[Format]) -> Option<Format> {
        choices.last().copied()
    }
    fn prefers_fixed(&self, spec: &KernelSpec) -> bool {
        assert!(spec.op == hologram_backends::Operation::Matmul && !spec.uses_step());
        true
    }
    fn info(&self) -> &DeviceInfo {
        self.cpu.info()
    }
    fn allocate_buffer(&self, bytes: usize) -> Result<Buffer> {
        self.cpu.allocate_buffer(bytes)
    }
    fn copy_to_buffer(&self, buffer: &Buffer, offset: usize, data: &[u8]) -> Result<()> {
        self.cpu.copy_to_buffer(buffer, offset, data)
    }
    fn copy_from_buffer(&self, buffer: &Buffer, offset: usize, data: &mut [u8]) -> Result<()> {
        self.cpu.copy_from_buffer(buffer, offset, data)
    }
    fn copy_buffer(&self, from: &Buffer, at: usize, to: &Buffer, to_at: usize, bytes: usize) -> Result<()> {
        self.cpu.copy_buffer(from, at, to, to_at, bytes)
    }
    fn clear_error(&self, buffer: &Buffer, offset: usize, bytes: usize) -> Result<()> {
        self.cpu.clear_error(buffer, offset, bytes)
    }
    fn compile(&self, program: &Program) -> Result<Pipeline> {
        self.cpu.compile(program)
    }
    fn native(&self, spec: &KernelSpec) -> Option<Pipeline> {
        // Only attention has six operands.
        if let (6, Some(Extent::Fixed(tokens))) = (spec.inputs.len(), spec.output.shape.first()) {
            self.fixed.lock().unwrap().insert(*tokens);
        }
        self.cpu.native(spec)
    }
    fn record(&self, launches: &[Launch]) -> Result<CommandList> {
        self.cpu.record(launches)
    }
    fn submit(&self, list: &CommandList) -> Result<Event> {
        self.cpu.submit(list)
    }
    fn wait(&self, event: Event) -> Result<()> {
        self.cpu.wait(event)
    }
    fn synchronize(&self) -> Result<()> {
        self.cpu.synchronize()
    }
    fn metrics(&self) -> Metrics {
        self.cpu.metrics()
    }
}
