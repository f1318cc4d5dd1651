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
