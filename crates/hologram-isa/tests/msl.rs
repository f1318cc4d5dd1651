//! The Metal text of programs, checked without a compiler: what it must and must not contain. The example `msl_cases`
//! writes it with inputs and results, for `tools/metal` to compile and run.

use hologram_isa::msl::{MslArgument, MslKernel, MslTarget, print};
use hologram_isa::{Capability, IsaError, Type, parse};

#[path = "common/single.rs"]
mod single;

const TARGET: MslTarget = MslTarget { version: (3, 1) };

fn kernel(program: &str) -> Result<MslKernel, IsaError> {
    print(&parse(program).unwrap(), &TARGET)
}

fn rejected(program: &str) -> String {
    kernel(program).unwrap_err().to_string()
}

#[test]
fn a_small_program_reads_as_one_would_write_it() {
    let program = "kernel scale.by(x: buffer<f16>, f: f32, y: buffer<f32, write>, big: u64) workgroup(64) {
        %i = global.x\n%h = load.f16 x[%i]\n%v = cvt.f32 %h\n%v = mul.f32 %v, f\nstore.f32 y[%i], %v\n}";
    let got = kernel(program).unwrap();
    let golden = "#include <metal_stdlib>
using namespace metal;
#pragma clang fp contract(off)

struct Arguments {
    uint p0;
    float p1;
    uint p2;
    ulong p3;
};

constant uint sites[4] = {
    3u, 0u,
    6u, 2u
};

";
    assert!(got.text.starts_with(golden), "{}", got.text);
    let body = "[[max_total_threads_per_threadgroup(64)]]
kernel void hologram_scale_by(device const ushort *b0 [[buffer(0)]],
    device float *b2 [[buffer(1)]],
    constant Arguments &a [[buffer(2)]],
    device atomic_uint *faults [[buffer(3)]],
    uint3 local [[thread_position_in_threadgroup]],
    uint3 group [[threadgroup_position_in_grid]],
    uint linear [[thread_index_in_threadgroup]])
{
    uint v0;
    ushort v1;
    float v2;
    uint site = 0u, element = 0u;
    v0 = group.x * 64u + local.x;
    if (v0 < a.p0) v1 = b0[v0]; else { note(site, element, 1u, v0); v1 = 0; }
    v2 = f32_of_f16(v1);
    v2 = v2 * a.p1;
    if (v0 < a.p2) b2[v0] = float(v2); else { note(site, element, 2u, v0); }
    if (site != 0u) record(faults, sites[2u * site - 2u], sites[2u * site - 1u], element, group, linear);
}
";
    assert!(got.text.ends_with(body), "{}", got.text);
    let word = |binding, offset, size| MslArgument { binding, offset, size };
    let words = vec![word(Some(0), 0, 4), word(None, 4, 4), word(Some(1), 8, 4), word(None, 16, 8)];
    assert_eq!((got.arguments, got.argument_bytes), (words, 24));
    assert_eq!((got.argument_binding, got.faults, got.entry.as_str()), (2, Some(3), "hologram_scale_by"));
}

#[test]
fn every_instruction_has_a_form() {
    single::programs(|op, ty, types, program| {
        let rejected = |ty: &Type| *ty == Type::F64 || (op.info().signature.is_atomic() && ty.is_wide());
        let printed = print(program, &TARGET);
        assert_eq!(printed.is_err(), rejected(&ty) || types.iter().any(rejected), "{op:?} {ty} {printed:?}");
    });
}

/// Loops have variables of their own, in a plain loop and in one whose threads leave apart, beside registers and
/// arrays.
#[test]
fn no_name_is_declared_twice() {
    let arrays = (0..12).map(|i| format!("a{i}: f32[4]")).collect::<Vec<_>>().join(", ");
    let text = kernel(&format!(
        "kernel k(y: buffer<f32, write>, n: u32) workgroup(64) shared({arrays}) {{
            for %i: u32 = 0 to n step 2 {{
                for %j: u32 = 0 to n step n {{\n%v = cvt.f32 %j\nstore.f32 a11[%i], %v\n}}
            }}
            %t = thread.x
            for %k: u32 = %t to n step 3 {{\n%v = cvt.f32 %k\n%s = subgroup.add.f32 %v\nstore.f32 y[%k], %s\n}}
        }}"
    ));
    let text = text.unwrap().text;
    let mut names = Vec::new();
    for line in text.lines() {
        let mut words = line.trim().trim_start_matches("const ").trim_start_matches("threadgroup ").split(' ');
        if matches!(words.next(), Some("uint" | "int" | "float" | "bool")) {
            names.extend(words.next().map(|name| name.split(['[', ';']).next().unwrap_or(name).to_string()));
        }
    }
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert!(count > 20 && names.len() == count, "{text}");
}

#[test]
fn what_metal_lacks_is_rejected_by_name() {
    let wide = "kernel k(x: buffer<f64>) workgroup(32) {\n}";
    assert!(rejected(wide).contains(Capability::F64.name()));
    let atomic = "kernel k(x: buffer<u64, readwrite>) workgroup(32) {\n%a = atomic.add.u64 x[0], 1\n}";
    assert!(rejected(atomic).contains(Capability::Atomic64.name()));
    let list = |n: usize| (0..n).map(|i| format!("b{i}: buffer<u8>, s{i}: u32")).collect::<Vec<_>>().join(", ");
    let many = |n| format!("kernel k({}) workgroup(32) {{\n}}", list(n));
    assert!(kernel(&many(29)).is_ok());
    assert!(rejected(&many(30)).contains("30 buffers"));
    let shared = "kernel k() workgroup(1) shared(a: i8[1], b: i8[32767]) {\n}";
    assert!(rejected(shared).contains("32784 bytes"), "{}", rejected(shared));
    let old = print(&parse("kernel k() workgroup(1) {\n}").unwrap(), &MslTarget { version: (2, 2) });
    assert!(old.unwrap_err().to_string().contains("2.2"));
}

#[test]
fn atomic_sums_of_floats_depend_on_the_version() {
    let program =
        parse("kernel k(x: buffer<f32, readwrite>) workgroup(1) {\n%a = atomic.add.f32 x[0], 1.0\n}").unwrap();
    for (version, own) in [((2, 4), false), ((3, 0), true)] {
        let text = print(&program, &MslTarget { version }).unwrap().text;
        assert_eq!(text.contains("atomic_float"), own, "{text}");
    }
}
