//! Any bytes as blocks of every format: values that stay the same after the conversion for loading.
#![no_main]

use hologram_backends::DType;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    for format in DType::BLOCKS {
        let blocks = bytes.len() / format.block_bytes();
        let bytes = &bytes[..blocks * format.block_bytes()];
        let mut values = vec![0.0; blocks * format.block_len()];
        format.decode_row(bytes, &mut values).expect("whole blocks are decoded");
        assert!(format.decode_row(&bytes[..bytes.len().saturating_sub(1)], &mut values).is_err() || blocks == 0);
        let loaded = format.at_load();
        let mut recoded = vec![0; blocks * loaded.block_bytes()];
        format.recode(bytes, &mut recoded);
        let mut same = vec![0.0; values.len()];
        loaded.decode_row(&recoded, &mut same).expect("whole blocks are decoded");
        let bits = |values: &[f32]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        // NaN scales may have either sign.
        assert!(bits(&values) == bits(&same) || values.iter().any(|v| v.is_nan()), "{}", format.name());
    }
});
