//! The native half of the Python package: devices, tensors, kernels and language models. `hologram/*.py` builds the
//! public names on it.

mod buffer;
mod creation;
mod device;
mod dlpack;
mod dtype;
mod error;
mod files;
mod graph;
mod kernel;
mod layers;
mod linalg;
mod llm;
mod memory;
mod ops;
mod products;
mod reduce;
mod tape;
mod tensor;
mod wait;

use std::ffi::OsString;

use pyo3::prelude::*;

/// Runs the `hologram` command; returns its exit status.
#[pyfunction]
fn command(py: Python<'_>, words: Vec<OsString>) -> u8 {
    py.detach(|| hologram_cli::run(words))
}

#[pymodule]
fn _native(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add("DeviceError", m.py().get_type::<error::DeviceError>())?;
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<dtype::PyDType>()?;
    m.add_class::<kernel::PyKernel>()?;
    m.add_class::<llm::PyModel>()?;
    m.add_class::<tape::PyFunction>()?;
    m.add_class::<graph::PyGraph>()?;
    m.add_class::<graph::PyCompiled>()?;
    m.add_class::<llm::PyEvents>()?;
    m.add_class::<llm::PyTokenizer>()?;
    m.add_class::<llm::PyDecoder>()?;
    m.add_class::<llm::PySession>()?;
    m.add_class::<llm::PySampler>()?;
    macro_rules! functions {
        ($($function:path),* $(,)?) => {$(m.add_function(wrap_pyfunction!($function, m)?)?;)*};
    }
    functions![
        command,
        buffer::from_buffer,
        device::default_device,
        device::devices,
        device::forked,
        device::metrics,
        device::open_device,
        device::set_default_device,
        device::set_float32_precision,
        device::synchronize,
        dlpack::from_dlpack,
        files::load_npy,
        files::load_safetensors,
        files::save_npy,
        files::save_safetensors,
        creation::arange,
        ops::arg_max,
        ops::arg_min,
        ops::arg_sort,
        layers::attention,
        linalg::decompose,
        linalg::solve,
        ops::broadcast_to,
        ops::cast,
        ops::clip,
        ops::concat,
        ops::contiguous,
        layers::conv2d,
        ops::cumprod,
        ops::cumsum,
        ops::elementwise,
        ops::detach,
        creation::full,
        ops::gather,
        ops::layer_norm,
        ops::log_softmax,
        layers::loss,
        products::matmul,
        ops::nonzero,
        ops::pad,
        ops::permute,
        ops::promote_types,
        creation::random,
        reduce::reduce,
        ops::reshape,
        ops::rms_norm,
        ops::scatter,
        ops::scatter_add,
        ops::search_sorted,
        ops::select,
        ops::slice,
        ops::slice_step,
        ops::softmax,
        ops::sort,
        ops::straight_through,
        ops::take_along,
        ops::to_device,
        ops::unique,
        tape::begin_recording,
        tape::cancel_recording,
        tape::end_recording,
        tape::gradients,
        tape::is_recorded,
        tape::is_recording,
        tape::record_input,
        tape::signature,
        tensor::from_bytes,
        tensor::from_objects,
    ];
    Ok(())
}
