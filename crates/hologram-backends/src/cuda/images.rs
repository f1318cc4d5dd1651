//! The native kernels' images that the binary carries: one line for each.

/// The compiled forms of one source, zlib-compressed.
pub(super) struct Image {
    /// The source's name without its ending.
    pub(super) name: &'static str,
    /// Machine code for compute capability 9.0.
    pub(super) cubin: &'static [u8],
    /// PTX for every capability from 8.0 on; none where the kernels need what only 9.0 has.
    pub(super) ptx: Option<&'static [u8]>,
}

macro_rules! images {
    ($($name:literal $($only:ident)?),* $(,)?) => {
        &[$(Image {
            name: $name,
            cubin: include_bytes!(concat!("images/", $name, ".sm_90a.cubin.z")),
            ptx: images!(@ptx $name $($only)?),
        }),*]
    };
    (@ptx $name:literal only_sm_90a) => { None };
    (@ptx $name:literal) => { Some(include_bytes!(concat!("images/", $name, ".sm_80.ptx.z"))) };
}

/// Every image; `only_sm_90a` after a name whose source says so.
pub(super) const IMAGES: &[Image] = images![
    "attention_decode",
    "attention_few",
    "attention_prefill",
    "decode_stack" only_sm_90a,
    "elementwise",
    "gather",
    "gemm_mma",
    "gemm_wgmma" only_sm_90a,
    "kv_append",
    "matmul_f32",
    "matvec",
    "matvec_i8",
    "matvec_packed",
    "packed",
    "quantize",
    "reduce",
    "repack",
    "rms_norm",
    "rope",
    "rope_append",
    "sample",
    "softmax",
    "top_k",
];

#[cfg(test)]
mod tests {
    #[test]
    fn every_image_is_built_in() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda/images");
        for entry in std::fs::read_dir(folder).expect("the folder of images") {
            let file = entry.expect("a file").file_name().into_string().expect("a name");
            let Some(name) = file.strip_suffix(".sm_90a.cubin.z") else { continue };
            assert!(super::IMAGES.iter().any(|image| image.name == name), "{name} is not listed");
        }
    }
}
