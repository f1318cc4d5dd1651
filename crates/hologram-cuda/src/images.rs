//! The native kernels' images in the binary: all of `images/`, compressed by `build/`; none on Apple's machines.

use std::io::Read;

use lzma_rust2::LzmaReader;

use crate::short_ptx;

/// The compiled forms of one source, as `.lzma` files.
pub(super) struct Image {
    /// The source's name without its ending.
    pub(super) name: &'static str,
    /// Machine code for compute capability 9.0.
    pub(super) cubin: &'static [u8],
    /// Short PTX for every capability from 8.0 on; `None` for kernels that need features of 9.0.
    pub(super) ptx: Option<&'static [u8]>,
}

/// An image's bytes.
pub(super) fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut data = Vec::new();
    LzmaReader::new_mem_limit(packed, u32::MAX, None)?.read_to_end(&mut data)?;
    Ok(data)
}

/// An image's PTX.
pub(super) fn unpack_ptx(packed: &[u8]) -> std::io::Result<String> {
    let short = String::from_utf8(unpack(packed)?).map_err(std::io::Error::other)?;
    short_ptx::long(&short).ok_or_else(|| std::io::Error::other("it is no short PTX"))
}

include!(concat!(env!("OUT_DIR"), "/images.rs"));

#[cfg(all(test, not(target_vendor = "apple")))]
#[path = "../build/ptx.rs"]
mod ptx;

#[cfg(all(test, not(target_vendor = "apple")))]
mod tests {
    use super::ptx;

    /// A release has no more than 8 MB of them. Debug builds compress faster, to half as much again.
    #[test]
    fn images_are_small() {
        let sizes = super::IMAGES.iter().map(|image| image.cubin.len() + image.ptx.map_or(0, <[u8]>::len));
        let bytes: usize = sizes.sum();
        let most = if cfg!(debug_assertions) { 12_000_000 } else { 8_000_000 };
        assert!((1_000_000..=most).contains(&bytes), "{bytes} bytes");
    }

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
            let data = std::fs::read(&path).expect("a file");
            match form {
                "sm_90a.cubin" => assert!(super::unpack(image.cubin).expect("an image") == data, "{file}"),
                "sm_80.ptx" => {
                    let packed = image.ptx.unwrap_or_else(|| panic!("{name} is for capability 9.0 only"));
                    let plain = ptx::plain(std::str::from_utf8(&data).expect("a text"));
                    assert!(super::unpack(packed).expect("an image") == ptx::short(&plain).as_bytes(), "{file}");
                    assert!(super::unpack_ptx(packed).expect("an image") == plain, "{file}");
                }
                form => assert_eq!(form, "made", "{file}"),
            }
        }
    }
}
