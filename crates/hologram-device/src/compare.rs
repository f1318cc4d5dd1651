//! Compares programs on a device with the reference interpreter, which treats subnormal numbers as the device does; any
//! difference is a fault of the device.

use hologram_isa::{Capability, ParamKind, Program, Type, print, random};

use crate::backend::Backend;
use crate::error::Result;
use crate::launch::{Binding, LaunchConfig};
use crate::reference::ReferenceBackend;

/// Runs a program once with these buffer contents, then these scalars; returns the buffers' contents afterwards.
///
/// # Errors
/// Those of the device.
pub fn run(
    device: &dyn Backend,
    program: &Program,
    buffers: &[Vec<u8>],
    scalars: &[u64],
    grid: [u32; 3],
) -> Result<Vec<Vec<u8>>> {
    let mut handles = Vec::new();
    for bytes in buffers {
        let buffer = device.allocate_buffer(bytes.len())?;
        device.copy_to_buffer(&buffer, 0, bytes)?;
        handles.push(buffer);
    }
    let bindings = handles.iter().map(Binding::whole).chain(scalars.iter().map(|w| Binding::Scalar(*w)));
    device.execute_program(program, &bindings.collect::<Vec<_>>(), &LaunchConfig { grid })?;
    let mut results = Vec::new();
    for buffer in &handles {
        let mut bytes = vec![0; buffer.bytes()];
        device.copy_from_buffer(buffer, 0, &mut bytes)?;
        results.push(bytes);
    }
    Ok(results)
}

/// Compares a program of [`random::case`], or a part of one, on the device and on the interpreter; describes the first
/// difference, if any.
///
/// # Errors
/// Those of the interpreter; an error of the device alone is a difference.
pub fn difference(device: &dyn Backend, program: &Program, grid: [u32; 3], seed: u64) -> Result<Option<String>> {
    let random::Arguments { buffers, scalars } = random::arguments(program, grid, seed);
    let expected =
        run(&ReferenceBackend::with_subnormals(device.info().subnormals), program, &buffers, &scalars, grid)?;
    let got = match run(device, program, &buffers, &scalars, grid) {
        Ok(got) => got,
        Err(error) => return Ok(Some(format!("{error}, the interpreter finds no fault"))),
    };
    for (i, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let Some(ParamKind::Buffer { element: ty, .. }) = program.params.get(i).map(|p| p.kind) else { continue };
        let elements = got.chunks_exact(ty.size()).zip(expected.chunks_exact(ty.size()));
        for (at, (got, expected)) in elements.enumerate() {
            let (got, expected) = (canonical(ty, got), canonical(ty, expected));
            if got != expected {
                let array = program.params.get(i).map_or("?", |p| p.name.as_str());
                return Ok(Some(format!(
                    "element {at} of {array} is {got:#x}, the interpreter says {expected:#x}; grid {grid:?}, scalars \
                     {scalars:x?}"
                )));
            }
        }
    }
    Ok(None)
}

/// Runs the random program of a seed, limited to the device's capabilities, on the device and on the interpreter. If
/// they differ, returns a description with the smallest program that still differs.
///
/// # Errors
/// As [`difference`].
pub fn random_program(device: &dyn Backend, seed: u64) -> Result<Option<String>> {
    let there = &device.info().capabilities;
    let lacking: Vec<Capability> = Capability::ALL.into_iter().filter(|c| !there.contains(c)).collect();
    let random::Case { program, grid } = random::case_without(seed, &lacking)?;
    let Some(text) = difference(device, &program, grid, seed)? else { return Ok(None) };
    let program = random::shrink(program, |p| matches!(difference(device, p, grid, seed), Ok(Some(_))));
    Ok(Some(format!("seed {seed}: {text}\n{}", print(&program))))
}

/// The bits of an element; all NaNs, whose pattern is undefined, give the same bits.
pub fn canonical(ty: Type, element: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..element.len()].copy_from_slice(element);
    let word = u64::from_le_bytes(word);
    match ty {
        Type::F32 if f32::from_bits(word as u32).is_nan() => u64::MAX,
        Type::F64 if f64::from_bits(word).is_nan() => u64::MAX,
        Type::F16 if word & 0x7fff > 0x7c00 => u64::MAX,
        Type::BF16 if word & 0x7fff > 0x7f80 => u64::MAX,
        _ => word,
    }
}
