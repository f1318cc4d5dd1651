//! The native kernels' texts that serve Apple GPUs: every `.k` and `.metal` file, listed by `build/`. Every platform
//! knows the names, those that compile the texts have them.

include!(concat!(env!("OUT_DIR"), "/texts.rs"));
