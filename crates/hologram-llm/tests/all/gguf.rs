//! The GGUF reader on files of the reference writer, on files with deliberate errors, and on randomly damaged files.

use hologram_backends::DType;
use hologram_llm::gguf::{FileBytes, GgufFile, TensorType, Value};
use hologram_llm::{Config, LlmError};
use memmap2::MmapMut;
use std::path::PathBuf;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn map(bytes: &[u8]) -> FileBytes {
    let mut map = MmapMut::map_anon(bytes.len().max(1)).unwrap();
    map[..bytes.len()].copy_from_slice(bytes);
    FileBytes::Map(map.make_read_only().unwrap())
}

fn parse(bytes: &[u8]) -> Result<GgufFile, LlmError> {
    GgufFile::from_bytes("test.gguf", map(bytes))
}

/// Little-endian bytes, written piece by piece.
#[derive(Clone, Default)]
struct Bytes(Vec<u8>);

impl Bytes {
    fn u32(mut self, v: u32) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }
    fn u64(mut self, v: u64) -> Self {
        self.0.extend(v.to_le_bytes());
        self
    }
    fn raw(mut self, v: &[u8]) -> Self {
        self.0.extend(v);
        self
    }
    fn str(self, s: &str) -> Self {
        self.u64(s.len() as u64).raw(s.as_bytes())
    }
    fn header(version: u32, tensors: u64, keys: u64) -> Self {
        Bytes::default().raw(b"GGUF").u32(version).u64(tensors).u64(keys)
    }
    fn tensor(self, name: &str, ne: &[u64], ty: u32, offset: u64) -> Self {
        let with_rank = self.str(name).u32(ne.len() as u32);
        ne.iter().fold(with_rank, |b, &n| b.u64(n)).u32(ty).u64(offset)
    }
    /// Pads to a multiple of 32, then appends `n` bytes of data.
    fn data(mut self, n: usize) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32) + n, 7);
        self
    }
}

/// A small file with a value of every type and tensors of several types.
fn sample() -> Vec<u8> {
    Bytes::header(3, 4, 15)
        .str("u8")
        .u32(0)
        .raw(&[200])
        .str("i8")
        .u32(1)
        .raw(&[200])
        .str("u16")
        .u32(2)
        .raw(&[1, 2])
        .str("i16")
        .u32(3)
        .raw(&[255, 255])
        .str("u32")
        .u32(4)
        .u32(7)
        .str("i32")
        .u32(5)
        .u32(-7i32 as u32)
        .str("f32")
        .u32(6)
        .u32(1.5f32.to_bits())
        .str("bool")
        .u32(7)
        .raw(&[1])
        .str("string")
        .u32(8)
        .str("héllo")
        .str("strings")
        .u32(9)
        .u32(8)
        .u64(3)
        .str("a")
        .str("")
        .str("ccc")
        .str("numbers")
        .u32(9)
        .u32(5)
        .u64(2)
        .u32(3)
        .u32(-4i32 as u32)
        .str("u64")
        .u32(10)
        .u64(1 << 40)
        .str("i64")
        .u32(11)
        .u64(-1i64 as u64)
        .str("f64")
        .u32(12)
        .u64(0.1f64.to_bits())
        .str("general.alignment")
        .u32(4)
        .u32(32)
        .tensor("f32", &[5, 3, 2], 0, 0)
        .tensor("q2_0", &[256, 2], 42, 128)
        .tensor("i2_s", &[128, 1], 36, 416)
        .tensor("scalar", &[], 28, 480)
        .data(488)
        .0
}

#[test]
fn values_and_tensors_of_every_type() {
    let file = parse(&sample()).unwrap();
    assert_eq!((file.version(), file.alignment(), file.metadata().count()), (3, 32, 15));
    assert_eq!(file.get::<u32>("u8").unwrap(), 200);
    assert_eq!(file.get::<i32>("i8").unwrap(), -56);
    assert_eq!(file.get::<usize>("u16").unwrap(), 0x201);
    assert_eq!(file.get::<i32>("i16").unwrap(), -1);
    assert_eq!(file.get::<u64>("u64").unwrap(), 1 << 40);
    assert_eq!(file.get::<f32>("f32").unwrap(), 1.5);
    assert_eq!(file.get::<f32>("f64").unwrap(), 0.1);
    assert_eq!(file.get::<f32>("i32").unwrap(), -7.0);
    assert!(file.get::<bool>("bool").unwrap());
    assert_eq!(file.get::<&str>("string").unwrap(), "héllo");
    assert_eq!(file.get::<Vec<i32>>("numbers").unwrap(), [3, -4]);
    assert_eq!(file.get_opt::<u32>("nothing").unwrap(), None);
    let Some(Value::Strings(strings)) = file.value("strings") else { panic!("not strings") };
    assert_eq!(strings.iter().collect::<Vec<_>>(), [&b"a"[..], b"", b"ccc"]);
    assert_eq!(strings.get(3), None);

    let t = file.tensor("f32").unwrap();
    assert_eq!((t.shape(), t.rows(), t.row_len(), t.data().len()), (&[2, 3, 5][..], 6, 5, 120));
    assert_eq!((t.dtype().unwrap(), t.range().start % 32), (DType::F32, 0));
    assert_eq!(t.data(), &file.parts()[t.part()].map()[t.range()]);
    let t = file.tensor("i2_s").unwrap();
    assert_eq!((t.ty().name, t.data().len()), ("I2_S", 8 * 16 / 4 + 32));
    let t = file.tensor("scalar").unwrap();
    assert_eq!((t.rows(), t.row_len(), t.elements(), t.data().len()), (1, 1, 1, 8));

    let messages = [
        (file.get::<u32>("none").unwrap_err(), "test.gguf: missing key none"),
        (file.get::<u32>("string").unwrap_err(), "test.gguf: key string is a string, but must be u32"),
        (file.get::<u32>("i32").unwrap_err(), "test.gguf: key i32 is -7, which does not fit in u32"),
        (file.get::<u32>("f32").unwrap_err(), "test.gguf: key f32 is of type f32, but must be u32"),
        (
            file.get::<&str>("strings").unwrap_err(),
            "test.gguf: key strings is an array of strings, but must be a string",
        ),
        (
            file.get::<Vec<u32>>("numbers").unwrap_err(),
            "key numbers has an element 1 that is -4, which does not fit in u32",
        ),
        (file.tensor("x").unwrap_err(), "test.gguf: missing tensor x"),
        (
            file.tensor("q2_0").unwrap().dtype().unwrap_err(),
            "test.gguf: tensor q2_0 has type Q2_0, which is not supported; supported: F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, \
             Q4_K, Q5_K, Q6_K, IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ4_NL, IQ3_S, IQ2_S, IQ4_XS, IQ1_M, BF16, TQ1_0, TQ2_0, I2_S, MXFP4, NVFP4",
        ),
    ];
    for (error, want) in messages {
        assert!(error.to_string().ends_with(want), "{error}");
    }
}

#[test]
fn wrong_files_are_named() {
    let one = |b: Bytes| b.data(64).0;
    let key = |b: fn(Bytes) -> Bytes| one(b(Bytes::header(3, 0, 1)));
    let tensor = |ne: &[u64], ty, offset| one(Bytes::header(3, 1, 0).tensor("t", ne, ty, offset));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GGUF".to_vec(), "has only 4 bytes"),
        (vec![0x50; 100], "starts with \"PPPP\" instead of \"GGUF\""),
        (b"PK\x03\x04".repeat(10), "perhaps a PyTorch checkpoint: convert it to GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n".to_vec(), "run `git lfs pull`"),
        (b"<!DOCTYPE html><html></html>".to_vec(), "it is a web page"),
        (one(Bytes::header(1, 0, 0)), "version 1"),
        (one(Bytes::header(4, 0, 0)), "version 4"),
        (one(Bytes::header(0x0300_0000, 0, 0)), "big-endian"),
        (one(Bytes::header(3, u64::MAX, 0)), "number of tensors is 18446744073709551615"),
        (one(Bytes::header(3, 0, 1 << 40)), "number of keys is 1099511627776"),
        (key(|b| b.u64(1 << 63)), "the length of key 0 is 9223372036854775808"),
        (key(|b| b.u64(2).raw(&[0xff, 0xff])), "key 0 is not UTF-8"),
        (key(|b| b.str("k").u32(13)), "key k has the unknown type 13"),
        (key(|b| b.str("k").u32(7).raw(&[2])), "key k has the bool 2"),
        (key(|b| b.str("k").u32(8).u64(1000)), "value of key k is 1000, more than the remaining"),
        (key(|b| b.str("k").u32(8).u64(1).raw(&[0x80])), "the value of key k is not UTF-8"),
        (key(|b| b.str("k").u32(9).u32(10).u64(1 << 61)), "array of key k is 2305843009213693952"),
        (key(|b| b.str("k").u32(9).u32(8).u64(2).u64(90)), "string 0 of key k is 90 bytes long"),
        (key(|b| b.str("k").u32(9).u32(9).u64(0)), "nested arrays"),
        (key(|b| b.str("general.alignment").u32(4).u32(24)), "general.alignment is 24"),
        (key(|b| b.str("general.alignment").u32(4).u32(0)), "general.alignment is 0"),
        (key(|b| b.str("general.alignment").u32(8).str("32")), "general.alignment is not of type u32"),
        (one(Bytes::header(3, 0, 2).str("k").u32(0).raw(&[1]).str("k").u32(0).raw(&[1])), "key k occurs twice"),
        (key(|b| b.str("split.count").u32(2).raw(&[3, 0])), "it is part 1 of 3; a split model must be opened by path"),
        (tensor(&[4], 31, 0), "tensor t has the type Q4_0_4_4, which is no longer in use; convert the model again"),
        (tensor(&[4], 77, 0), "tensor t has the unknown type 77"),
        (tensor(&[1, 1, 1, 1, 1], 0, 0), "tensor t has 5 dimensions"),
        (tensor(&[1 << 32, 1 << 32], 0, 0), "tensor t has too many elements"),
        (tensor(&[0, 1 << 32, 1 << 32], 0, 0), "tensor t has too many elements"),
        (tensor(&[u64::MAX], 0, 0), "tensor t has too many elements"),
        (tensor(&[1 << 62], 28, 0), "tensor t of type F64 is larger than the largest possible file"),
        (tensor(&[4], 99, 0), "tensor t has the unknown type 99"),
        (
            tensor(&[48], 8, 0),
            "tensor t of type Q8_0 has 48 elements per row, which is not a multiple of the block size 32",
        ),
        (tensor(&[4], 0, 4), "tensor t has offset 4, which is not a multiple of the alignment 32"),
        (tensor(&[4], 0, 64), "tensor t of 16 bytes at data offset 64 ends beyond the file"),
        (tensor(&[4], 0, u64::MAX - 31), "ends beyond the file"),
        (one(Bytes::header(3, 2, 0).tensor("a", &[4], 0, 0).tensor("a", &[4], 0, 32)), "tensor a occurs twice"),
        (one(Bytes::header(3, 2, 0).tensor("a", &[9], 0, 0).tensor("b", &[4], 0, 32)), "tensors a and b overlap"),
    ];
    for (bytes, want) in cases {
        let error = parse(&bytes).expect_err(want).to_string();
        assert!(error.contains(want) && error.contains("test.gguf"), "{error}\n  should say: {want}");
    }
    for (path, want) in
        [("no-such.gguf", "cannot open"), ("blocks", "not a regular file"), ("tok-spm.json", "starts with")]
    {
        let error = GgufFile::open(fixture(path)).expect_err(want).to_string();
        assert!(error.contains(want) && error.contains(path), "{error}");
    }
}

#[test]
fn a_tokenizer_larger_than_the_vocabulary_is_rejected() {
    let file = |tokens: u64| {
        let b = Bytes::header(3, 1, 2).str("general.architecture").u32(8).str("llama");
        let b = b.str("tokenizer.ggml.tokens").u32(9).u32(8).u64(tokens);
        let b = (0..tokens).fold(b, |b, _| b.str("t"));
        parse(&b.tensor("token_embd.weight", &[4, 2], 0, 0).data(32).0).unwrap()
    };
    let error = |tokens| Config::from_gguf(&file(tokens)).unwrap_err().to_string();
    assert!(error(3).ends_with("the tokenizer has 3 tokens, but token_embd.weight has only 2 rows"), "{}", error(3));
    assert!(error(2).ends_with("missing key llama.embedding_length"), "{}", error(2));
}

/// Keys that change a model in unsupported ways are rejected by name, unless their value has no effect.
#[test]
fn keys_that_nothing_serves() {
    let config = |key: &str, value: f32| {
        let sizes = [
            ("block_count", 1),
            ("embedding_length", 4),
            ("feed_forward_length", 8),
            ("attention.head_count", 1),
            ("context_length", 16),
        ];
        let b = Bytes::header(3, 1, 8).str("general.architecture").u32(8).str("llama");
        let b = sizes.iter().fold(b, |b, (key, n)| b.str(&format!("llama.{key}")).u32(4).u32(*n));
        let b = b.str("llama.attention.layer_norm_rms_epsilon").u32(6).u32(1e-5f32.to_bits());
        let b = b.str(&format!("llama.{key}")).u32(6).u32(value.to_bits());
        let file = parse(&b.tensor("token_embd.weight", &[4, 2], 0, 0).data(32).0).unwrap();
        Config::from_gguf(&file).map(|_| ()).map_err(|e| e.to_string())
    };
    for (key, nothing, other, want) in [
        ("logit_scale", 1.0, 0.25, "llama.logit_scale 0.25"),
        ("embedding_scale", 0.0, 12.0, "llama.embedding_scale 12"),
        ("residual_scale", 1.0, 0.5, "llama.residual_scale 0.5"),
        ("attention.scale", 0.5, 1.0, "llama.attention.scale 1"),
        ("attn_logit_softcapping", 0.0, 50.0, "llama.attn_logit_softcapping 50"),
        ("final_logit_softcapping", 0.0, 1.0, "llama.final_logit_softcapping 1"),
    ] {
        assert_eq!(config(key, nothing), Ok(()), "{key}");
        let error = config(key, other).unwrap_err();
        assert!(error.starts_with(&format!("test.gguf: {want} is not supported")), "{error}");
    }
}

/// Gemma 3 27B divides attention scores by the root of width / heads; smaller ones by that of the head size.
#[test]
fn attention_scores_that_files_do_not_describe() {
    let scale = |layers: u32| {
        let sizes = [
            ("block_count", layers),
            ("embedding_length", 64),
            ("feed_forward_length", 8),
            ("attention.head_count", 4),
            ("attention.key_length", 4),
            ("attention.value_length", 4),
            ("context_length", 16),
        ];
        let b = Bytes::header(3, 1, 9).str("general.architecture").u32(8).str("gemma3");
        let b = sizes.iter().fold(b, |b, (key, n)| b.str(&format!("gemma3.{key}")).u32(4).u32(*n));
        let b = b.str("gemma3.attention.layer_norm_rms_epsilon").u32(6).u32(1e-5f32.to_bits());
        let file = parse(&b.tensor("token_embd.weight", &[4, 2], 0, 0).data(32).0).unwrap();
        Config::from_gguf(&file).unwrap().scales.attention
    };
    assert_eq!((scale(62), scale(34)), (Some(0.25), None));
}

#[test]
fn sizes_of_types_and_versions() {
    for (id, name, len, bytes) in
        [(0, "F32", 6, 24), (2, "Q4_0", 64, 36), (14, "Q6_K", 256, 210), (35, "TQ2_0", 512, 132)]
    {
        let ty = TensorType::from_id(id).unwrap();
        assert_eq!((ty.name, ty.bytes(3, len)), (name, Some(3 * bytes)));
    }
    assert_eq!(TensorType::from_id(134).unwrap().bytes(2, 128), Some(2 * (2 * 13 + 2)));
    assert!(TensorType::from_id(4).is_none());
    assert_eq!(parse(&Bytes::header(2, 1, 0).tensor("t", &[4], 0, 0).data(16).0).unwrap().version(), 2);
}

/// Files of the reference writer, and dequantization bit for bit against the reference package.
#[test]
fn reference_files_and_blocks() {
    let file = GgufFile::open(fixture("llama-tiny.gguf")).unwrap();
    assert_eq!(file.architecture().unwrap(), "llama");
    assert_eq!(file.get::<u32>("llama.block_count").unwrap(), 2);
    assert_eq!(file.tensor("token_embd.weight").unwrap().shape(), [384, 128]);
    assert_eq!(file.tensor("blk.1.ffn_down.weight").unwrap().shape(), [128, 256]);
    assert!(file.tensor("blk.1.ffn_down.weight").unwrap().to_f32().unwrap().iter().all(|x| x.is_finite()));
    let file = GgufFile::open(fixture("bitnet-tiny.gguf")).unwrap();
    assert_eq!(file.tensor("blk.0.attn_k.weight").unwrap().dtype().unwrap(), DType::TQ2_0);

    let blocks = DType::BLOCKS.into_iter().filter(|format| format.row().is_some_and(|row| row.id.is_some()));
    for format in [DType::F32, DType::F16, DType::BF16].into_iter().chain(blocks).chain(DType::GRIDS) {
        let name = format.name().to_lowercase();
        let bytes = std::fs::read(fixture(&format!("blocks/{name}.bin"))).unwrap();
        let want = std::fs::read(fixture(&format!("blocks/{name}.f32"))).unwrap();
        let want: Vec<u32> = want.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let mut got = vec![f32::NAN; want.len()];
        format.decode_row(&bytes, &mut got).unwrap();
        assert!(want.len() >= 256 && got.iter().map(|x| x.to_bits()).eq(want.iter().copied()), "{name}");
        assert!(format.decode_row(&bytes[1..], &mut got).is_err());
        let (recoded, mut values) = (format.recoded(), vec![f32::NAN; want.len()]);
        let mut blocks = vec![0; recoded.bytes(1, want.len()).unwrap()];
        format.recode(&bytes, &mut blocks);
        recoded.decode_row(&blocks, &mut values).unwrap();
        assert!(values.iter().map(|x| x.to_bits()).eq(want), "{name} as {recoded}");
    }
    assert!(DType::Q8_0.decode_row(&[0; 34], &mut [0.0; 31]).is_err());
    assert!(DType::U32.decode_row(&[0; 4], &mut [0.0]).is_err());
}

/// The same weights in TQ2_0 and, in two files, in I2_S; TQ1_0 becomes TQ2_0 without loss.
#[test]
fn ternary_types_hold_the_same() {
    let blocks = GgufFile::open(fixture("bitnet-tiny.gguf")).unwrap();
    let split = GgufFile::open(fixture("bitnet-i2_s-00001-of-00002.gguf")).unwrap();
    assert_eq!((split.parts().len(), split.tensors().len()), (2, blocks.tensors().len()));
    assert_eq!(split.metadata().filter(|(key, _)| !key.starts_with("split.")).count(), blocks.metadata().count());
    for t in split.tensors() {
        let (got, want) = (t.to_f32().unwrap(), blocks.tensor(t.name()).unwrap().to_f32().unwrap());
        let factor = [("attn_q", 1.1), ("attn_k", 1.0 / 1.1)].into_iter().find(|(n, _)| t.name().contains(n));
        let factor = factor.map_or(1.0, |(_, factor)| factor);
        assert!(got.iter().zip(&want).all(|(g, w)| (g - w * factor).abs() <= w.abs() * 1e-6), "{t:?}");
        assert!(factor != 1.0 || got == want, "{t:?}");
    }
    let bytes = std::fs::read(fixture("blocks/tq1_0.bin")).unwrap();
    let mut recoded = vec![0; bytes.len() / 54 * 66];
    DType::TQ1_0.recode(&bytes, &mut recoded);
    let mut values = [vec![0.0; bytes.len() / 54 * 256], vec![1.0; bytes.len() / 54 * 256]];
    DType::TQ1_0.decode_row(&bytes, &mut values[0]).unwrap();
    DType::TQ1_0.at_load().decode_row(&recoded, &mut values[1]).unwrap();
    let [want, got] = values.map(|v| v.into_iter().map(f32::to_bits).collect::<Vec<u32>>());
    assert_eq!(got, want);
}

/// Names and contents of files.
type Set<'a> = Vec<(&'a str, Vec<u8>)>;

/// A folder of files for one test, removed when dropped.
struct Files(PathBuf);

impl Files {
    fn new(files: &[(&str, Vec<u8>)]) -> Files {
        let folder = std::env::temp_dir().join(format!("hologram-split-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
        Files(folder)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn sets_of_files_are_checked() {
    let part = |no: u16, count: u16, all: u32, architecture: &str, tensor: &str| {
        let architecture_key = |b: Bytes| b.str("general.architecture").u32(8).str(architecture);
        let b = architecture_key(Bytes::header(3, 1, 4));
        let b = b.str("split.no").u32(2).raw(&no.to_le_bytes()).str("split.count").u32(2).raw(&count.to_le_bytes());
        b.str("split.tensors.count").u32(5).u32(all).tensor(tensor, &[4], 0, 0).data(16).0
    };
    let good = |no: u16| part(no, 3, 3, "llama", ["a", "b", "c"][usize::from(no)]);
    let names = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];
    let whole = || names.into_iter().zip([good(0), good(1), good(2)]).collect::<Vec<_>>();
    let files = Files::new(&whole());
    let file = GgufFile::open(files.0.join(names[0])).unwrap();
    let found: Vec<(&str, usize)> = file.tensors().map(|t| (t.name(), t.part())).collect();
    assert_eq!(found, [("a", 0), ("b", 1), ("c", 2)]);
    assert!(file.tensors().all(|t| t.to_f32().unwrap().len() == 4));
    drop(files);
    let with = |at: usize, bytes: Vec<u8>| {
        let mut files = whole();
        files[at].1 = bytes;
        files
    };
    let cases: Vec<(Set<'_>, &str, &str)> = vec![
        (whole(), names[1], "it is part 2 of 3; open the first part, m-00001-of-00003.gguf"),
        (whole().drain(..2).collect(), names[0], "m-00003-of-00003.gguf is missing"),
        (whole().drain(..1).collect(), names[0], "is missing (2 of 3 parts are missing)"),
        (vec![("m.gguf", good(0))], "m.gguf", "its name must end with -00001-of-00003.gguf"),
        (with(1, good(2)), names[0], "it should be part 2 of 3, but contains part 3"),
        (with(1, good(0)), names[0], "it should be part 2 of 3, but contains part 1"),
        (with(2, part(2, 4, 3, "llama", "c")), names[0], "but is part 3 of 4 of another model"),
        (with(2, part(2, 3, 9, "llama", "c")), names[0], "but is part 3 of 3 of another model"),
        (with(2, part(2, 3, 3, "qwen2", "c")), names[0], "but is part 3 of 3 of another model"),
        (with(2, part(2, 3, 3, "llama", "a")), names[0], "tensor a is also in another part"),
        (with(1, good(1)[..60].to_vec()), names[0], "m-00002-of-00003.gguf as a GGUF file: "),
        (
            (0..3).map(|i| (names[i], part(i as u16, 3, 7, "llama", ["a", "b", "c"][i]))).collect(),
            names[0],
            "its 3 parts have 3 tensors, but split.tensors.count is 7",
        ),
    ];
    for (set, open, want) in cases {
        let files = Files::new(&set);
        let error = GgufFile::open(files.0.join(open)).expect_err(want).to_string();
        assert!(error.contains(want), "{error}\n  should say: {want}");
    }
}

/// Uses the whole interface of an open file.
fn walk(file: &GgufFile) -> usize {
    let values: usize = file.metadata().map(|(k, v)| k.len() + v.to_string().len()).sum();
    let tensors: usize = file.tensors().map(|t| t.data().len() + t.rows() + t.to_f32().map_or(0, |v| v.len())).sum();
    values + tensors
}

#[test]
fn damaged_files_give_errors_not_panics() {
    let good = sample();
    assert!(walk(&parse(&good).unwrap()) > 0);
    for len in 0..good.len() {
        assert!(parse(&good[..len]).is_err() || len == 0, "accepted at {len} of {}", good.len());
    }
    let tiny = std::fs::read(fixture("tok-bpe.gguf")).unwrap();
    for len in (0..tiny.len()).step_by(97) {
        assert!(parse(&tiny[..len.max(1)]).is_err(), "accepted at {len} of {}", tiny.len());
    }
    // A fixed sequence of random damage: one to four bytes, half of it to special values.
    let mut state = 1u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    let (mut accepted, mut rejected) = (0, 0);
    for _ in 0..20_000 {
        let mut bytes = good.clone();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            bytes[at] = if random(2) == 0 { [0, 1, 9, 0x7f, 0x80, 0xff][random(6)] } else { random(256) as u8 };
        }
        match parse(&bytes) {
            Ok(file) => accepted += usize::from(walk(&file) > 0),
            Err(_) => rejected += 1,
        }
    }
    assert!(accepted > 1000 && rejected > 1000, "{accepted} accepted, {rejected} rejected");
}
