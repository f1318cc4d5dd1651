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
    "attention_decode" from "../kernels/attention_decode.k",
    "attention_prefill" from "kernels/attention_prefill.metal",
    "elementwise" from "../kernels/elementwise.k",
    "gather" from "../kernels/gather.k",
    "kv_append" from "../kernels/kv_append.k",
    "matmul_f32" from "../kernels/matmul_f32.k",
    "matmul_packed" from "kernels/matmul_packed.metal",
    "matmul_simdgroup" from "kernels/matmul_simdgroup.metal",
    "matvec" from "../kernels/matvec.k",
    "matvec_i8" from "../kernels/matvec_i8.k",
    "matvec_packed" from "../kernels/matvec_packed.k",
    "packed" from "../kernels/packed.k",
    "quantize" from "../kernels/quantize.k",
    "reduce" from "../kernels/reduce.k",
    "repack" from "../kernels/repack.k",
    "rms_norm" from "../kernels/rms_norm.k",
    "rope" from "../kernels/rope.k",
    "rope_append" from "../kernels/rope_append.k",
    "sample" from "../kernels/sample.k",
    "softmax" from "../kernels/softmax.k",
    "top_k" from "../kernels/top_k.k",
}
