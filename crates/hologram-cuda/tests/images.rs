//! The build's output for images, and the images that it rejects.

#[path = "../build/images.rs"]
mod images;

const DECLARED: &str = "text a folder/k.cu\nkernel k .u64 .u32 .f32 .align\n";

/// Rejects an image made from another text: number and kinds of the arguments must be those of the declaration.
#[test]
fn images_take_what_their_texts_declare() {
    let texts = images::texts(DECLARED);
    let [(path, kernels)] = texts.as_slice() else { panic!("{texts:?}") };
    assert_eq!(path, std::path::Path::new("a folder/k.cu"));
    let ptx = ".visible .entry k(\n\t.param .u64 .ptr .align 1 k_param_0,\n\t.param .u32 k_param_1,\n\t.param .f32 k_param_2,\n\
               \t.param .align 64 .b8 k_param_3[128]\n)\n.maxntid 1, 1, 1\n{\n\t.param .b64 param0;\n\tret;\n}\n";
    assert_eq!(images::check("k.ptx", ptx, kernels), Ok(()));
    for (from, to, message) in [
        ("\t.param .u32 k_param_1,\n", "", "k takes other arguments than its text declares"),
        (".u32 k_param_1", ".f32 k_param_1", "k takes other arguments than its text declares"),
        ("entry k(", "entry l(", "k is missing"),
        ("{\n", "{\n}\n.visible .entry l(\n)\n{\n", "it has other kernels than its text"),
    ] {
        let error = images::check("k.ptx", &ptx.replace(from, to), kernels).unwrap_err();
        assert!(error.starts_with(&format!("k.ptx: {message}")), "{error}");
    }
    let error = images::list(&std::env::temp_dir(), &texts, &std::env::temp_dir()).unwrap_err();
    assert!(error.contains("make it by tools/cuda-kernels/build.py k"), "{error}");
}

/// Registers and labels are distances, parameters are numbers, comments and white space are gone; and back.
#[test]
fn ptx_is_short_in_the_binary() {
    let ptx = "// made by\n\n.visible .entry k(\n\t.param .u64 k_param_0,\n\t.param .u32 \tk_param_1\n)\n{\n\t.reg .f32 \t%f<9>;\n\
               \tld.param.u32 \t%r1, [k_param_1];\n\tmov.u32 \t%r2, %tid.x; // x\n\tadd.s32 \t%r5, %r2, %r1;\n\
               $L__BB0_2:\n\tadd.f32 \t%f1, %f3, 0f3F800000;\n\t@%p1 bra \t$L__BB0_2;\n\tbra \t$L__BB0_7;\n\
               $L__BB0_6:\n\tbra \t$L__BB0_5;\n\tmov.u32 \t%r6, a_$_0;\n\t.pragma \"a//b\";\n\tret;\n}\n\
               .visible .entry l(\n\t.param .u64 l_param_0\n)\n{\n$L__BB1_2:\n\tmov.u32 \t%r1, %r2;\n}\n";
    let short = ".visible .entry k(\n.param .u64 ^0,\n.param .u32 ^1\n)\n{\n.reg .f32 %f<9>;\n\
                 ld.param.u32 %r+,[^1];\nmov.u32 %r+,%tid.x;\nadd.s32 %r+3,%r3,%r4;\n\
                 $L__BB0_2:\nadd.f32 %f+,%f+2,0f3F800000;\n@%p+ bra $0;\nbra $5;\n\
                 $4:\nbra $-1;\nmov.u32 %r+,a_$_0;\n.pragma \"a//b\";\nret;\n}\n\
                 .visible .entry l(\n.param .u64 ^0\n)\n{\n$L__BB1_2:\nmov.u32 %r+,%r+;\n}\n";
    let plain = images::ptx::plain(ptx);
    assert!(
        plain.contains("add.s32 %r5,%r2,%r1;\n")
            && plain.contains("bra $L__BB0_5;\nmov.u32 %r6,a_$_0;\n.pragma \"a//b\";\n"),
        "{plain}"
    );
    assert_eq!(images::ptx::short(&plain), short);
    assert_eq!(images::short_ptx::long(short).as_deref(), Some(plain.as_str()));
    for damaged in ["%r1", "bra $1;", "^", "$L__BB", "$L__BB0", "$L__BB0_", "$L__BB0_1:\nbra $-2;", "%r+4294967295 %r+"]
    {
        assert_eq!(images::short_ptx::long(damaged), None, "{damaged}");
    }
}
