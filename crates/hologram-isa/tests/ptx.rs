//! The PTX of programs, checked without an assembler: which instructions it must and must not contain. The example
//! `print_programs` of hologram-core writes it for assembling; its results are tested on a device.

use hologram_isa::ptx::{PtxTarget, print};
use hologram_isa::{IsaError, parse, random};

#[path = "common/single.rs"]
mod single;

const SM_80: PtxTarget = PtxTarget { capability: 80, version: (7, 0) };
const SM_90: PtxTarget = PtxTarget { capability: 90, version: (7, 8) };

fn text(program: &str) -> String {
    print(&parse(program).unwrap(), &SM_80).unwrap().text
}

#[test]
fn every_rounding_is_written() {
    for seed in 0..200 {
        let program = random::case(seed).unwrap().program;
        for target in [SM_80, SM_90] {
            let kernel = print(&program, &target).unwrap();
            assert_eq!(kernel.text.contains("griddepcontrol.wait"), target.capability >= 90);
            for line in kernel.text.lines() {
                let op = line.trim().split(' ').find(|w| !w.starts_with('@')).unwrap_or("");
                let arithmetic = ["add.", "sub.", "mul.", "div.", "fma.", "sqrt."].iter().any(|p| op.starts_with(p));
                let float = op.ends_with(".f32") || op.ends_with(".f64");
                assert!(!(arithmetic && float) || op.contains(".rn."), "{line}");
                assert!(!op.contains(".ftz") && !op.contains(".approx") && !op.contains(".full"), "{line}");
                assert!(!op.starts_with("mad.") || !float, "{line}");
            }
        }
    }
}

/// A kernel that moves the elements `first + 0 … first + 3` from x to y, in this order.
fn moves(first: &str, order: [u32; 4], between: &str) -> String {
    let indices: String = (0..4).map(|k| format!("%i{k} = add.u32 %i, {k}\n")).collect();
    let loads: String = order.iter().map(|k| format!("%v{k} = load.f16 x[%i{k}]\n")).collect();
    let stores: Vec<String> = order.iter().map(|k| format!("store.f16 y[%i{k}], %v{k}\n")).collect();
    text(&format!(
        "kernel moves(x: buffer<f16>, y: buffer<f16, write>, z: buffer<f16, readwrite>, n: u32) workgroup(32) {{
        %g = global.x\n%i = {first}\n{indices}{loads}{}{between}\n{}\n}}",
        stores[0],
        stores[1..].concat()
    ))
}

#[test]
fn every_instruction_has_a_form() {
    single::programs(|op, ty, _, program| {
        print(program, &SM_80).unwrap_or_else(|e| panic!("{op:?} {ty}: {e}"));
    });
}

#[test]
fn four_neighbours_move_together() {
    let v4 = |text: &str| (text.matches("ld.global.v4.u16").count(), text.matches("st.global.v4.u16").count());
    for first in ["shl.u32 %g, 2", "mul.u32 %g, 12", "and.u32 %g, 0xfffffffc", "rem.u32 8, 4"] {
        for order in [[0, 1, 2, 3], [2, 0, 3, 1]] {
            assert_eq!(v4(&moves(first, order, "")), (1, 1), "{first}");
        }
    }
    // Not known to be a multiple of four, or not four different elements.
    for first in ["shl.u32 %g, 1", "add.u32 %g, 4", "mul.u32 %g, n", "or.u32 %g, 4"] {
        assert_eq!(v4(&moves(first, [0, 1, 2, 3], "")), (0, 0), "{first}");
    }
    // Buffers may overlap: a store does not move across a load or a store to another buffer.
    for between in ["%w = load.f16 x[%g]", "store.f16 z[%g], %v0", "barrier", "if true {\n}"] {
        assert_eq!(v4(&moves("shl.u32 %g, 2", [0, 1, 2, 3], between)), (1, 0), "{between}");
    }
    assert_eq!(v4(&moves("shl.u32 %g, 2", [0, 1, 2, 3], "%w = sub.u32 %g, 1")), (1, 1));
}

#[test]
fn lanes_that_take_part_are_the_programs() {
    // Without a subgroup operation threads follow their own paths.
    let body = |inside: &str| {
        text(&format!(
            "kernel k(y: buffer<f32, write>) workgroup(48) {{
            %l = lane\n%p = lt.u32 %l, 7\n%v = cvt.f32 %l\nloop max 3 {{\nif %p {{\nbreak\n}}\n{inside}\n}}\n}}"
        ))
    };
    assert!(!body("store.f32 y[%l], %v").contains("sync"));
    // One vote after the `if` that some leave, one per iteration; and the second subgroup is incomplete.
    let joint = body("%s = subgroup.add.f32 %v");
    assert_eq!(joint.matches("vote.sync.ballot").count(), 2, "{joint}");
    assert!(joint.contains("shl.b32") && joint.contains("shfl.sync.bfly.b32"), "{joint}");
}

#[test]
fn fast_forms_are_the_devices_own() {
    let program = |fast: &str| {
        text(&format!("kernel k(x: f32) workgroup(1) {{\n%y = exp{fast}.f32 x\n%z = div{fast}.f32 %y, x\n}}"))
    };
    assert!(program(".fast").contains("ex2.approx.ftz.f32") && program(".fast").contains("div.full.f32"));
    assert!(!program("").contains("approx") && program("").contains("div.rn.f32"));
}

#[test]
fn old_targets_are_rejected() {
    let program = parse("kernel a.b() workgroup(1) {\n}").unwrap();
    assert_eq!(print(&program, &SM_90).unwrap().entry, "hologram_a_b");
    for (capability, version) in [(75, (8, 0)), (80, (6, 5)), (90, (7, 7))] {
        assert!(matches!(print(&program, &PtxTarget { capability, version }), Err(IsaError::Build { .. })));
    }
}
