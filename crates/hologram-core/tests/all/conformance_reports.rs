//! The conformance suite reports wrong programs: wrong values, missing elements or elements beyond the extent.

use hologram_backends::{KernelSpec, Operation};
use hologram_core::conformance::{Case, CaseInput, HostTensor, Reference, run_case};
use hologram_core::ops::{Kernel, Launchable, Mismatch, Op};
use hologram_core::{DType, Dim, Executor, Result, TensorType};

/// The fault of a program that should copy its input.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// One element is off by two units in the last place.
    Value,
    /// The last element is not written.
    Missing,
    /// The first element beyond the extent is written.
    Beyond,
}

#[derive(Debug)]
struct Copy(Fault);

impl Op for Copy {
    fn operation(&self) -> Operation {
        Operation::Copy
    }

    fn infer(&self, inputs: &[&TensorType]) -> std::result::Result<TensorType, Mismatch> {
        inputs.first().map(|x| (*x).clone()).ok_or_else(|| "takes x".into())
    }

    fn program(&self, spec: &KernelSpec) -> Result<Launchable> {
        let mut k = Kernel::new(spec, 64);
        let max = spec.output.max_rows() * spec.output.row_len();
        let total = k.elements(&spec.output);
        let (x, y) = (k.inputs[0].clone(), k.output.clone());
        let b = &mut k.b;
        let i = b.global_x();
        let end = match self.0 {
            Fault::Missing => b.sub(total, 1u32),
            Fault::Beyond => b.add(total, 1u32),
            Fault::None | Fault::Value => total,
        };
        let inside = b.lt(i, end);
        let fault = self.0;
        b.if_(inside, |b| {
            let mut v = x.load(b, i);
            if matches!(fault, Fault::Value) {
                let here = b.eq(i, 70u32);
                let off = b.mul(v, 1.0 + 2.0 * f32::EPSILON);
                v = b.select(here, off, v);
            }
            y.store(b, i, v);
        });
        k.finish(max.div_ceil(64))
    }

    fn reference(&self, inputs: &[HostTensor]) -> Reference {
        let mut out = Reference::default();
        for v in inputs.iter().flat_map(|t| &t.values) {
            out.push(*v, v.abs() * f64::from(f32::EPSILON));
        }
        out
    }
}

#[test]
fn faults_are_reported() {
    let executor = Executor::open("reference", None).expect("the interpreter is always there");
    for (fault, expected) in [
        (Fault::None, None),
        (Fault::Value, Some("program: row 2, column 6: got")),
        (Fault::Missing, Some("program: row 2, column 31: got NaN")),
        (Fault::Beyond, Some("program: byte 384, which lies beyond the extents, was written")),
    ] {
        let case =
            Case::new(Copy(fault), &[(5, 3)]).input(CaseInput::normal(DType::F32, &[Dim::Extent(0), Dim::Fixed(32)]));
        let result = run_case(&executor, 0, &case);
        match (expected, &result.failure) {
            (None, None) => {}
            (Some(text), Some(failure)) => {
                assert!(failure.starts_with(text), "{fault:?}: {failure}");
                assert!(result.to_string().starts_with("case 0 copy(f32[3/5, 32]): "), "{result}");
            }
            (_, failure) => panic!("{fault:?}: {failure:?}"),
        }
    }
}
