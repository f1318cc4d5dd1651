//! The list of native kernels' texts that serve Apple GPUs: every platform knows the names, those that compile the texts have them.

macro_rules! texts {
    ($($name:literal from $file:literal,)*) => {
        /// Their names, without the ending.
        pub(super) const NAMES: &[&str] = &[$($name),*];

        /// Name and text.
        #[cfg(any(target_vendor = "apple", feature = "host-double", test))]
        pub(super) const TEXTS: &[(&str, &str)] = &[$(($name, include_str!($file))),*];
    };
}

texts! {
    "attention_decode" from "../gpu/kernels/attention_decode.k",
    "attention_prefill" from "kernels/attention_prefill.metal",
    "elementwise" from "../gpu/kernels/elementwise.k",
    "gather" from "../gpu/kernels/gather.k",
    "kv_append" from "../gpu/kernels/kv_append.k",
    "matmul_f32" from "../gpu/kernels/matmul_f32.k",
    "matmul_packed" from "kernels/matmul_packed.metal",
    "matmul_simdgroup" from "kernels/matmul_simdgroup.metal",
    "matvec" from "../gpu/kernels/matvec.k",
    "matvec_i8" from "../gpu/kernels/matvec_i8.k",
    "matvec_packed" from "../gpu/kernels/matvec_packed.k",
    "packed" from "../gpu/kernels/packed.k",
    "quantize" from "../gpu/kernels/quantize.k",
    "reduce" from "../gpu/kernels/reduce.k",
    "repack" from "../gpu/kernels/repack.k",
    "rms_norm" from "../gpu/kernels/rms_norm.k",
    "rope" from "../gpu/kernels/rope.k",
    "rope_append" from "../gpu/kernels/rope_append.k",
    "sample" from "../gpu/kernels/sample.k",
    "softmax" from "../gpu/kernels/softmax.k",
    "top_k" from "../gpu/kernels/top_k.k",
}
