//! Any file: an error, or a model file whose metadata and tensors can all be read.
#![no_main]

use hologram_llm::gguf::{FileBytes, GgufFile};
use hologram_llm::{Config, tokenizer::Tokenizer};
use libfuzzer_sys::fuzz_target;
use memmap2::MmapMut;

fuzz_target!(|bytes: &[u8]| {
    let mut map = MmapMut::map_anon(bytes.len().max(1)).expect("memory");
    map[..bytes.len()].copy_from_slice(bytes);
    let map = FileBytes::Map(map.make_read_only().expect("memory"));
    let Ok(file) = GgufFile::from_bytes("fuzzed.gguf", map) else { return };
    let shown: usize = file.metadata().map(|(key, value)| key.len() + value.to_string().len()).sum();
    assert!(shown > 0 || file.metadata().count() == 0);
    for tensor in file.tensors() {
        assert_eq!(tensor.data().len(), tensor.range().len());
        // Many small files claim an empty tensor; those that claim many elements contain them.
        if let Ok(values) = tensor.to_f32() {
            assert_eq!(values.len(), tensor.elements());
        }
    }
    let _ = (Config::from_gguf(&file), Tokenizer::from_gguf(&file));
});
