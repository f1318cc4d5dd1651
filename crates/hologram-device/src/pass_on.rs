//! Delegation for devices that wrap others.

/// Delegates methods of [`Backend`](crate::Backend), [`Kernels`](crate::Kernels) and [`Measure`](crate::Measure) to the
/// same methods of a field, or of an expression of `self`.
///
/// ```
/// use hologram_device::*;
///
/// /// The reference device, which always reports no free memory.
/// struct Modest(ReferenceBackend);
///
/// impl Backend for Modest {
///     hologram_device::pass_on!(self => self.0;
///         info is_available policy kernels measure streams allocate_buffer allocate_pool owns wrap copy_to_buffer
///         copy_from_buffer copy_buffer clear_error record submit wait synchronize);
///
///     fn available_memory(&self) -> Option<u64> {
///         Some(0)
///     }
/// }
///
/// let device = Modest(ReferenceBackend::new());
/// assert_eq!(device.available_memory(), Some(0));
/// assert_eq!(device.allocate_buffer(5)?.bytes(), 5);
/// # Ok::<(), BackendError>(())
/// ```
#[macro_export]
macro_rules! pass_on {
    ($self:ident => $to:expr; $($method:ident)*) => {
        $($crate::pass_on!(@ $method $self $to);)*
    };
    (@ info $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; info() -> &$crate::DeviceInfo); };
    (@ is_available $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; is_available() -> bool); };
    (@ policy $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; policy() -> &$crate::Policy); };
    (@ kernels $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; kernels() -> &dyn $crate::Kernels); };
    (@ measure $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; measure() -> &dyn $crate::Measure); };
    (@ streams $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; streams() -> Option<&dyn $crate::Streams>); };
    (@ allocate_buffer $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; allocate_buffer(bytes: usize) -> $crate::Result<$crate::Buffer>);
    };
    (@ allocate_pool $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; allocate_pool(bytes: usize) -> $crate::Result<$crate::Pool>);
    };
    (@ owns $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; owns(buffer: &$crate::Buffer) -> bool); };
    (@ available_memory $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; available_memory() -> Option<u64>); };
    (@ wrap $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; wrap(memory: $crate::ForeignMemory) -> $crate::Result<$crate::Buffer>);
    };
    (@ wrap_pointer $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; wrap_pointer(memory: $crate::ForeignPointer) -> $crate::Result<$crate::Buffer>);
    };
    (@ copy_to_buffer $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to;
            copy_to_buffer(buffer: &$crate::Buffer, offset: usize, data: &[u8]) -> $crate::Result<()>);
    };
    (@ copy_from_buffer $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to;
            copy_from_buffer(buffer: &$crate::Buffer, offset: usize, data: &mut [u8]) -> $crate::Result<()>);
    };
    (@ copy_buffer $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to;
            copy_buffer(from: &$crate::Buffer, at: usize, to: &$crate::Buffer, to_at: usize, bytes: usize)
                -> $crate::Result<()>);
    };
    (@ clear_error $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to;
            clear_error(buffer: &$crate::Buffer, offset: usize, bytes: usize) -> $crate::Result<()>);
    };
    (@ record $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; record(launches: &[$crate::Launch]) -> $crate::Result<$crate::CommandList>);
    };
    (@ submit $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; submit(list: &$crate::CommandList) -> $crate::Result<$crate::Event>);
    };
    (@ wait $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; wait(event: $crate::Event) -> $crate::Result<()>);
    };
    (@ is_behind $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; is_behind(submissions: u64) -> $crate::Result<bool>);
    };
    (@ synchronize $self:ident $to:expr) => { $crate::pass_on!(@@ $self $to; synchronize() -> $crate::Result<()>); };
    (@ compile $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; compile(program: &$crate::Program) -> $crate::Result<$crate::Pipeline>);
    };
    (@ native $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; native(spec: &$crate::KernelSpec) -> Option<$crate::Pipeline>);
    };
    (@ native_group $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; native_group(group: &$crate::GroupSpec) -> Option<$crate::Pipeline>);
    };
    (@ prefers_fixed $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; prefers_fixed(spec: &$crate::KernelSpec) -> bool);
    };
    (@ expect_weights $self:ident $to:expr) => {
        $crate::pass_on!(@@ $self $to; expect_weights(layout: $crate::DType) -> ());
    };
    (@@ $self:ident $to:expr; $method:ident($($name:ident: $ty:ty),*) -> $result:ty) => {
        fn $method(&$self, $($name: $ty),*) -> $result {
            $to.$method($($name),*)
        }
    };
}
