//! Folders with a matrix quantized in each way give the logits of the folder that holds its values.

use std::path::{Path, PathBuf};

use hologram_core::Executor;
use hologram_llm::{Logits, Model, SessionOptions};
use serde_json::{Map, Value, json};

/// A tensor: name, type, shape, bytes.
type Stored = (String, &'static str, Vec<usize>, Vec<u8>);

/// The matrix that is replaced: rows and columns, and elements of a group.
const MODULE: &str = "model.layers.0.mlp.down_proj";
const ROWS: usize = 32;
const COLS: usize = 64;
const GROUP: usize = 32;
/// The values of NF4.
const NF4: [f32; 16] = [
    -1.0,
    -0.6961928,
    -0.52507305,
    -0.3949175,
    -0.28444138,
    -0.18477343,
    -0.09105004,
    0.0,
    0.0795803,
    0.1609302,
    0.2461123,
    0.33791524,
    0.44070983,
    0.562617,
    0.72295684,
    1.0,
];

/// A copy of a folder, removed when dropped.
struct Copy(PathBuf);

impl Copy {
    /// The `qwen2` fixture without the matrix, with these tensors and keys of `config.json`.
    fn with(name: &str, tensors: Vec<Stored>, keys: Value) -> Copy {
        let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen2");
        let to = std::env::temp_dir().join(format!("hologram-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&to);
        std::fs::create_dir_all(&to).unwrap();
        let mut config: Map<String, Value> =
            serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
        config.extend(keys.as_object().unwrap().clone());
        std::fs::write(to.join("config.json"), Value::Object(config).to_string()).unwrap();
        let file = std::fs::read(from.join("model.safetensors")).unwrap();
        let at = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
        let old: Map<String, Value> = serde_json::from_slice(&file[8..at]).unwrap();
        let (mut header, mut data) = (Map::new(), Vec::new());
        let mut add = |name: &str, dtype: &Value, shape: &Value, bytes: &[u8]| {
            let range = [data.len(), data.len() + bytes.len()];
            header.insert(name.into(), json!({ "dtype": dtype, "shape": shape, "data_offsets": range }));
            data.extend_from_slice(bytes);
        };
        for (name, entry) in old.iter().filter(|(name, _)| *name != "__metadata__" && !name.starts_with(MODULE)) {
            let place = |i: usize| at + entry["data_offsets"][i].as_u64().unwrap() as usize;
            add(name, &entry["dtype"], &entry["shape"], &file[place(0)..place(1)]);
        }
        for (name, dtype, shape, bytes) in tensors {
            add(&format!("{MODULE}.{name}"), &json!(dtype), &json!(shape), &bytes);
        }
        let header = Value::Object(header).to_string();
        let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
        std::fs::write(to.join("model.safetensors"), file).unwrap();
        Copy(to)
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn logits(path: &Path) -> hologram_llm::Result<Vec<f32>> {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let model = Model::load_on(path, &executor)?;
    let mut session = model.session(SessionOptions { context: 64, ..SessionOptions::default() })?;
    let tokens: Vec<u32> = (3..20).collect();
    Ok(session.feed(0, &tokens, Logits::All)?.to_vec())
}

fn relative_error(got: &[f32], want: &[f32]) -> f32 {
    let squares: f32 = want.iter().map(|v| v * v).sum();
    (got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f32>() / squares).sqrt()
}

/// An unsigned code of 4 bits, a zero point and a scale of 2⁻⁴ to 2⁻².
fn code(r: usize, c: usize) -> u32 {
    ((r * 31 + c * 17 + r * c * 5) % 16) as u32
}
fn zero(r: usize, g: usize) -> u32 {
    ((r + 3 * g) % 5 + 6) as u32
}
fn scale(r: usize, g: usize) -> f32 {
    [0.0625, 0.25, 0.125, 0.1875][(r + g) % 4]
}

fn bytes(values: impl Iterator<Item = u32>) -> Vec<u8> {
    values.flat_map(u32::to_le_bytes).collect()
}
fn f16s(values: impl Iterator<Item = f32>) -> Vec<u8> {
    values.flat_map(|v| half::f16::from_f32(v).to_le_bytes()).collect()
}
/// Eight nibbles of a word, the first lowest.
fn word(nibble: impl Fn(usize) -> u32) -> u32 {
    (0..8).map(|j| nibble(j) << (4 * j)).sum()
}

/// The scheme's tensors, its keys of `config.json`, and the value of each element.
type Scheme = (&'static str, Vec<Stored>, Value, fn(usize, usize) -> f32);

fn schemes() -> Vec<Scheme> {
    const GROUPS: usize = COLS / GROUP;
    let method = |name: &str| json!({ "quantization_config": { "quant_method": name } });
    let by_group = || (0..GROUPS).flat_map(|g| (0..ROWS).map(move |r| (r, g)));
    let by_row = || (0..ROWS).flat_map(|r| (0..GROUPS).map(move |g| (r, g)));
    let asymmetric: fn(usize, usize) -> f32 =
        |r, c| scale(r, c / GROUP) * (code(r, c) as f32 - zero(r, c / GROUP) as f32);
    let symmetric: fn(usize, usize) -> f32 = |r, c| scale(r, c / GROUP) * (code(r, c) as f32 - 8.0);
    // AutoGPTQ's first format: along the columns; zero points minus 1.
    let columns = bytes((0..COLS / 8).flat_map(|w| (0..ROWS).map(move |r| word(|j| code(r, 8 * w + j)))));
    let zeros = bytes((0..GROUPS).flat_map(|g| (0..ROWS / 8).map(move |w| word(|j| zero(8 * w + j, g) - 1))));
    let index = bytes((0..COLS).map(|c| (c / GROUP) as u32));
    let of_groups = f16s(by_group().map(|(r, g)| scale(r, g)));
    let gptq = vec![
        ("qweight".into(), "I32", vec![COLS / 8, ROWS], columns),
        ("qzeros".into(), "I32", vec![GROUPS, ROWS / 8], zeros),
        ("scales".into(), "F16", vec![GROUPS, ROWS], of_groups.clone()),
        ("g_idx".into(), "I32", vec![COLS], index),
    ];
    // AutoAWQ's packing: along the rows, in the order of its kernels.
    const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
    let awq = vec![
        (
            "qweight".into(),
            "I32",
            vec![COLS, ROWS / 8],
            bytes((0..COLS).flat_map(|c| (0..ROWS / 8).map(move |w| word(|j| code(8 * w + ORDER[j], c))))),
        ),
        (
            "qzeros".into(),
            "I32",
            vec![GROUPS, ROWS / 8],
            bytes((0..GROUPS).flat_map(|g| (0..ROWS / 8).map(move |w| word(|j| zero(8 * w + ORDER[j], g))))),
        ),
        ("scales".into(), "F16", vec![GROUPS, ROWS], of_groups),
    ];
    let rows = bytes((0..ROWS).flat_map(|r| (0..COLS / 8).map(move |w| word(|j| code(r, 8 * w + j)))));
    let of_rows = f16s(by_row().map(|(r, g)| scale(r, g)));
    let compressed = vec![
        ("weight_packed".into(), "I32", vec![ROWS, COLS / 8], rows.clone()),
        ("weight_scale".into(), "F16", vec![ROWS, GROUPS], of_rows.clone()),
        (
            "weight_shape".into(),
            "I64",
            vec![2],
            [ROWS as u64, COLS as u64].iter().flat_map(|n| n.to_le_bytes()).collect(),
        ),
    ];
    let mlx = vec![
        ("weight".into(), "U32", vec![ROWS, COLS / 8], rows),
        ("scales".into(), "F16", vec![ROWS, GROUPS], of_rows),
        ("biases".into(), "F16", vec![ROWS, GROUPS], f16s(by_row().map(|(r, g)| -(zero(r, g) as f32) * scale(r, g)))),
    ];
    // Codes of E4M3 with a mantissa and exponents of 2⁻⁴ to 2⁻¹, and both signs.
    let byte = |r: usize, c: usize| ((r * 29 + c * 13) % 2 * 128 + 24 + (r * 7 + c * 11 + r * c) % 32) as u8;
    let fp8_data: Vec<u8> = (0..ROWS * COLS).map(|i| byte(i / COLS, i % COLS)).collect();
    let f32s = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let fp8 = |name: &str, shape: Vec<usize>, scales: &[f32]| {
        vec![
            ("weight".into(), "F8_E4M3", vec![ROWS, COLS], fp8_data.clone()),
            (name.into(), "F32", shape, f32s(scales)),
        ]
    };
    fn fp8_value(r: usize, c: usize) -> f32 {
        let bits = 24 + (r * 7 + c * 11 + r * c) % 32;
        let magnitude = (1.0 + (bits % 8) as f32 / 8.0) * 2.0f32.powi(bits as i32 / 8 - 7);
        if (r * 29 + c * 13) % 2 == 1 { -magnitude } else { magnitude }
    }
    let blocks = json!({ "quantization_config": { "quant_method": "fp8", "weight_block_size": [16, 32] } });
    let per_row: Vec<f32> = (0..ROWS).map(|r| if r % 3 == 0 { 2.0 } else { 0.5 }).collect();
    let nvfp4 = vec![
        (
            "weight_packed".into(),
            "U8",
            vec![ROWS, COLS / 2],
            (0..ROWS * COLS / 2)
                .map(|i| (code(i / 32, i % 32 * 2) | code(i / 32, i % 32 * 2 + 1) << 4) as u8)
                .collect(),
        ),
        (
            "weight_scale".into(),
            "F8_E4M3",
            vec![ROWS, COLS / 16],
            (0..ROWS * COLS / 16).map(|i| 0x30 + (i % 24) as u8).collect(),
        ),
        ("weight_global_scale".into(), "F32", vec![1], f32s(&[8.0])),
    ];
    fn nvfp4_value(r: usize, c: usize) -> f32 {
        let code = code(r, c) as usize;
        let magnitude = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0][code % 8];
        let scale = 0x30 + (r * COLS / 16 + c / 16) % 24;
        let scale = (1.0 + (scale % 8) as f32 / 8.0) * 2.0f32.powi(scale as i32 / 8 - 7);
        scale / 8.0 * if code < 8 { magnitude } else { -magnitude }
    }
    // The values of NF4 are an equal part of a normal distribution each; the scales of the second folder are codes.
    let state = |nested: Value| {
        let mut state = json!({ "quant_type": "nf4", "blocksize": GROUP, "dtype": "bfloat16", "shape": [ROWS, COLS] });
        state.as_object_mut().unwrap().extend(nested.as_object().unwrap().clone());
        let bytes = state.to_string().into_bytes();
        ("weight.quant_state.bitsandbytes__nf4".to_string(), "U8", vec![bytes.len()], bytes)
    };
    let nibbles = (0..ROWS * COLS / 2).map(|i| (code(i / 32, i % 32 * 2) << 4 | code(i / 32, i % 32 * 2 + 1)) as u8);
    let nf4 = |absmax: Stored, more: Vec<Stored>| {
        let codes = ("weight".into(), "U8", vec![ROWS * COLS / 2, 1], nibbles.clone().collect());
        let map = ("weight.quant_map".into(), "F32", vec![16], f32s(&NF4));
        [vec![codes, map, absmax], more].concat()
    };
    let of_blocks: Vec<f32> = by_row().map(|(r, g)| scale(r, g)).collect();
    let plain = nf4(("weight.absmax".into(), "F32", vec![ROWS * GROUPS], f32s(&of_blocks)), vec![state(json!({}))]);
    // Scale s = 2·(code - 128)/32 + 1/8.
    let codes: Vec<u8> = of_blocks.iter().map(|s| (s * 16.0) as u8 + 126).collect();
    let table: Vec<f32> = (0..256).map(|i| (i - 128) as f32 / 32.0).collect();
    let nested = nf4(
        ("weight.absmax".into(), "U8", vec![ROWS * GROUPS], codes),
        vec![
            ("weight.nested_quant_map".into(), "F32", vec![256], f32s(&table)),
            ("weight.nested_absmax".into(), "F32", vec![ROWS * GROUPS / 16], f32s(&[2.0; ROWS * GROUPS / 16])),
            state(json!({ "nested_blocksize": 16, "nested_offset": 0.125 })),
        ],
    );
    vec![
        ("nf4", plain, method("bitsandbytes"), |r, c| NF4[code(r, c) as usize] * scale(r, c / GROUP)),
        ("nf4-nested", nested, method("bitsandbytes"), |r, c| NF4[code(r, c) as usize] * scale(r, c / GROUP)),
        ("gptq", gptq, method("gptq"), asymmetric),
        ("awq", awq, method("awq"), asymmetric),
        ("pack-quantized", compressed, method("compressed-tensors"), symmetric),
        ("mlx", mlx, json!({ "quantization": { "group_size": GROUP, "bits": 4 } }), asymmetric),
        ("fp8-blocks", fp8("weight_scale_inv", vec![2, 2], &[0.5, 1.0, 2.0, 0.25]), blocks, |r, c| {
            fp8_value(r, c) * [[0.5, 1.0], [2.0, 0.25]][r / 16][c / 32]
        }),
        ("fp8-rows", fp8("weight_scale", vec![ROWS, 1], &per_row), method("compressed-tensors"), |r, c| {
            fp8_value(r, c) * if r % 3 == 0 { 2.0 } else { 0.5 }
        }),
        ("fp8-tensor", fp8("weight_scale", vec![], &[0.5]), method("fp8"), |r, c| fp8_value(r, c) * 0.5),
        ("nvfp4", nvfp4, method("compressed-tensors"), nvfp4_value),
    ]
}

#[test]
fn quantized_matrices_have_their_values() {
    for (name, tensors, keys, value) in schemes() {
        let values = |value: &dyn Fn(usize, usize) -> f32| {
            let all = (0..ROWS * COLS).flat_map(|i| value(i / COLS, i % COLS).to_le_bytes()).collect();
            let tensors = vec![("weight".to_string(), "F32", vec![ROWS, COLS], all)];
            logits(&Copy::with(&format!("{name}-values"), tensors, json!({})).0).unwrap()
        };
        let (want, other) = (values(&value), values(&|r, c| value(r, c ^ 1)));
        let got = logits(&Copy::with(name, tensors, keys).0).unwrap();
        let (error, least) = (relative_error(&got, &want), relative_error(&other, &want));
        // Activations have 8 bits, or those of bf16. Neighbours exchanged would be far off.
        println!("{name}: {error:.1e}, exchanged {least:.1e}");
        assert!(error < 0.02 && least > 0.1, "{name}: {error}, {least}");
    }
}

#[test]
fn damaged_scales_are_named() {
    let damage = |scheme: &str, tensor: &str, shape: Option<Vec<usize>>, change: fn(&mut Vec<u8>)| {
        let (_, mut tensors, keys, _) = schemes().into_iter().find(|s| s.0 == scheme).unwrap();
        let found = tensors.iter_mut().find(|t| t.0 == tensor).unwrap();
        found.2 = shape.unwrap_or(found.2.clone());
        change(&mut found.3);
        let copy = Copy::with(&format!("damaged-{scheme}"), tensors, keys);
        logits(&copy.0).map(|_| ()).unwrap_err().to_string()
    };
    let nan: fn(&mut Vec<u8>) = |bytes| bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    for (error, want) in [
        (damage("gptq", "scales", None, |bytes| bytes[1] = 0x7e), "has the invalid scale NaN"),
        (
            damage("gptq", "qzeros", Some(vec![4, 2]), |_| ()),
            "qzeros has shape [4, 2], but config.json requires [2, 4]",
        ),
        (damage("gptq", "g_idx", None, |bytes| bytes[8] = 9), "element 2 in group 9, but there are 2"),
        (damage("awq", "scales", Some(vec![32, 2]), |_| ()), "does not fit its matrix"),
        (damage("fp8-blocks", "weight_scale_inv", None, nan), "has the invalid scale NaN"),
        (damage("fp8-blocks", "weight_scale_inv", Some(vec![4, 1]), |_| ()), "requires [2, 2]"),
        (damage("fp8-blocks", "weight", None, |bytes| bytes[70] = 0x7f), "has a NaN in row 1"),
        (damage("nf4", "weight.absmax", None, nan), "has the invalid scale NaN"),
        (damage("nf4-nested", "weight.nested_absmax", Some(vec![2]), |b| b.truncate(8)), "has 2 scales of 64 scales"),
        (damage("nf4", "weight.quant_state.bitsandbytes__nf4", None, |b| b[0] = b'x'), "is not JSON"),
        (damage("nvfp4", "weight_scale", None, |bytes| bytes[3] = 0xff), "has the invalid scale NaN"),
        (damage("nvfp4", "weight_global_scale", None, nan), "has the invalid global scale NaN"),
    ] {
        assert!(error.contains(want) && error.contains("down_proj") && !error.contains('\n'), "{error}");
    }
}

/// gpt-oss's codes and scales, in a folder and in a GGUF file, are the same weights.
#[test]
fn mxfp4_experts_of_a_folder_are_those_of_its_gguf_file() {
    let executor = Executor::open("cpu", Some(2)).unwrap();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/gpt-oss-mxfp4");
    let logits = |file: &str| {
        let model = Model::load_on(fixtures.join(file), &executor).unwrap();
        let mut session = model.session(SessionOptions { context: 32, ..SessionOptions::default() }).unwrap();
        session.fix_precision(Some(1));
        session.feed(0, &[5, 9, 33, 60, 1, 17], Logits::All).unwrap().to_vec()
    };
    let (folder, file) = (logits(""), logits("model.gguf"));
    // The other matrices have types of their own, which some processors add up in another order.
    let off = folder.iter().zip(&file).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max);
    assert!(folder.len() == file.len() && off < 1e-4, "{off}");
}
