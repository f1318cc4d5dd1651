//! The native kernels' images in the binary: all of `images/`, compressed by `build/`.

use std::io::Read;

use lzma_rust2::LzmaReader;

/// The compiled forms of one source, as `.lzma` files.
pub(super) struct Image {
    /// The source's name without its ending.
    pub(super) name: &'static str,
    /// Machine code for compute capability 9.0.
    pub(super) cubin: &'static [u8],
    /// PTX for every capability from 8.0 on; `None` for kernels that need features of 9.0.
    pub(super) ptx: Option<&'static [u8]>,
}

/// An image's bytes.
pub(super) fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    LzmaReader::new_mem_limit(packed, u32::MAX, None)?.read_to_end(&mut data)?;
    Ok(data)
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));

#[cfg(test)]
mod tests {
    /// Each image unpacks to its file in the folder, and the folder holds nothing else.
    #[test]
    fn every_image_is_built_in() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("images");
        for entry in std::fs::read_dir(folder).expect("the folder of images") {
            let path = entry.expect("a file").path();
            let file = path.file_name().and_then(|f| f.to_str()).expect("a name");
            let (name, form) = file.split_once('.').expect("an ending");
            let image = super::IMAGES.iter().find(|image| image.name == name);
            let image = image.unwrap_or_else(|| panic!("{name} is not built in"));
            let packed = match form {
                "sm_90a.cubin" => image.cubin,
                "sm_80.ptx" => image.ptx.unwrap_or_else(|| panic!("{name} is for capability 9.0 only")),
                form => {
                    assert_eq!(form, "made", "{file}");
                    continue;
                }
            };
            let data = super::unpack(packed).expect("an image");
            assert!(data == std::fs::read(&path).expect("a file"), "{file}");
        }
    }
}
