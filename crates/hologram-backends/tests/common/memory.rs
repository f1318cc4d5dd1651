//! Buffers of words, for tests of devices.

use hologram_backends::{Backend, BackendError, Buffer};

/// A buffer with these words.
pub fn upload(device: &dyn Backend, values: &[u32]) -> Buffer {
    let buffer = device.allocate_buffer(values.len() * 4).unwrap();
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    device.copy_to_buffer(&buffer, 0, &bytes).unwrap();
    buffer
}

/// A buffer's words, after the device's work.
pub fn download(device: &dyn Backend, buffer: &Buffer) -> Result<Vec<u32>, BackendError> {
    let mut bytes = vec![0; buffer.bytes()];
    device.copy_from_buffer(buffer, 0, &mut bytes)?;
    Ok(bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect())
}
