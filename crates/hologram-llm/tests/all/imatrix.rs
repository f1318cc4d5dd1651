//! Importance matrices: sums of the activations' squares, and what they do for quantized files.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::common::scratch::Scratch;
use hologram_core::Executor;
use hologram_llm::gguf::GgufFile;
use hologram_llm::quantize::{Importance, ImportanceSums, QuantizeOptions, Recipe, quantize};
use hologram_llm::{Logits, Model, ModelFiles, SessionOptions};

const LLAMA: &str = "llama-tiny.gguf";

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn model(name: &str) -> Model {
    Model::load_on(fixture(name), &Executor::open("cpu", Some(2)).unwrap()).unwrap()
}

fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| (i * 7919 % (vocab - 3) + 3) as u32).collect()
}

fn sums(model: &Model, tokens: &[u32], context: usize) -> ImportanceSums {
    let mut last = (0, 0);
    let sums = model.importance(tokens, context, None, &mut |done, of| {
        assert!(done >= last.0 && done <= of);
        last = (done, of);
        ControlFlow::Continue(())
    });
    sums.unwrap().unwrap()
}

fn values(file: &GgufFile, name: &str) -> Vec<f32> {
    file.tensor(name).unwrap_or_else(|e| panic!("{e}")).to_f32().unwrap()
}

/// Checks that two lists of sums are equal within rounding.
fn same(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs() / a.abs().max(b.abs()).max(1e-6)).fold(0.0, f32::max);
    assert!(far < 1e-3, "{what}: {far:.2e}");
}

#[test]
fn sums_are_those_of_the_activations() {
    let scratch = Scratch::new("sums");
    let (model, path) = (model(LLAMA), scratch.0.join("imatrix.gguf"));
    let tokens = tokens(50, model.config().vocab);
    let both = sums(&model, &tokens, 16);
    // Seven matrices of each layer; the last two tokens are no window.
    assert_eq!(both.len(), 7 * model.config().layers);
    both.write(&path, "text.txt").unwrap();
    let file = GgufFile::open(&path).unwrap();
    assert_eq!(file.get::<&str>("general.type").unwrap(), "imatrix");
    assert_eq!(
        (file.get::<u32>("imatrix.chunk_count").unwrap(), file.get::<u32>("imatrix.chunk_size").unwrap()),
        (3, 16)
    );
    assert_eq!(file.tensor("blk.0.attn_q.weight.counts").unwrap().shape(), [1, 1]);
    assert_eq!(values(&file, "blk.1.ffn_down.weight.counts"), [48.0]);
    // The first layer's queries, keys and values are products of the normed embedding.
    let source = GgufFile::open(fixture(LLAMA)).unwrap();
    let (table, norm) = (values(&source, "token_embd.weight"), values(&source, "blk.0.attn_norm.weight"));
    let width = norm.len();
    let mut want = vec![0.0f32; width];
    for token in &tokens[..48] {
        let row = &table[*token as usize * width..][..width];
        let mean = row.iter().map(|v| v * v).sum::<f32>() / width as f32;
        let inverse = (mean + model.config().eps).sqrt().recip();
        want.iter_mut().zip(row).zip(&norm).for_each(|((sum, v), w)| *sum += (v * inverse * w).powi(2));
    }
    for part in ["attn_q", "attn_k", "attn_v"] {
        same(&values(&file, &format!("blk.0.{part}.weight.in_sum2")), &want, part);
    }
    assert_eq!(values(&file, "blk.0.ffn_down.weight.in_sum2").len(), model.config().ffn);
    // Another order of windows gives the same sums.
    let turned: Vec<u32> = tokens[..48].chunks(16).rev().flatten().copied().collect();
    let again = scratch.0.join("again.gguf");
    sums(&model, &turned, 16).write(&again, "text.txt").unwrap();
    let again = GgufFile::open(again).unwrap();
    for tensor in file.tensors() {
        same(&tensor.to_f32().unwrap(), &values(&again, tensor.name()), tensor.name());
    }
    // Too short a text, and a caller that ends it.
    let error = model.importance(&tokens[..9], 16, None, &mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("must be from 2 to 9"), "{error}");
    assert!(model.importance(&tokens, 16, None, &mut |_, _| ControlFlow::Break(())).unwrap().is_none());
}

#[test]
fn experts_are_counted_apart() {
    let scratch = Scratch::new("experts");
    for name in ["qwen3-moe", "gpt-oss"] {
        let (model, path) = (model(name), scratch.0.join(name));
        let experts = model.config().experts.clone().unwrap();
        sums(&model, &tokens(32, model.config().vocab), 16).write(&path, "text.txt").unwrap();
        let file = GgufFile::open(&path).unwrap();
        let of_router = values(&file, "blk.1.ffn_gate_inp.weight.in_sum2");
        for part in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"] {
            let of = |end: &str| file.tensor(&format!("blk.1.{part}.weight.{end}")).unwrap();
            let (sums, counts) = (of("in_sum2"), of("counts"));
            let columns = if part == "ffn_down_exps" { experts.ffn } else { model.config().width };
            assert_eq!((sums.shape(), counts.shape()), (&[experts.count, columns][..], &[experts.count, 1][..]));
            let (sums, counts) = (sums.to_f32().unwrap(), counts.to_f32().unwrap());
            assert_eq!(counts.iter().sum::<f32>(), (32 * experts.used) as f32);
            assert!(counts.iter().any(|n| *n != counts[0]), "{counts:?}");
            // An expert that is not used has no sums.
            for (sums, count) in sums.chunks(columns).zip(&counts) {
                assert_eq!(sums.iter().all(|v| *v == 0.0), *count == 0.0);
            }
            // Each token's inputs are those of as many experts as it uses, and of the router.
            if columns == of_router.len() && part != "ffn_down_exps" {
                let all = (0..columns).map(|i| sums.iter().skip(i).step_by(columns).sum::<f32>() / experts.used as f32);
                same(&all.collect::<Vec<_>>(), &of_router, part);
            }
        }
        assert!(Importance::open(&path).is_ok());
    }
}

/// A folder's sums are those of its GGUF file, under the same names, and leave out no tensor that is quantized.
#[test]
fn folders_have_the_sums_of_their_files() {
    let scratch = Scratch::new("folders");
    for name in [
        "gemma4-moe",
        "gemma3n",
        "qwen3-next",
        "qwen3-5-moe",
        "granite-4",
        "granite-4-dense",
        "falcon-h1",
        "nemotron-3-super",
        "deepseek-v3",
        "glm-4-7-flash",
        "lfm2-moe",
        "phi3",
        "gpt-oss",
        "mixtral",
    ] {
        let write = |source: &Path, recipe: &str, importance: Option<Importance>| {
            let out = scratch.0.join(format!("{name}-{recipe}.gguf"));
            let recipe = Recipe::from_name(recipe).unwrap();
            let options = QuantizeOptions { importance, threads: 2, ..QuantizeOptions::new(recipe) };
            let files = ModelFiles::open(source).unwrap();
            let done = quantize(&files, &out, &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
            (out, done.unweighted)
        };
        let (file, _) = write(&fixture(name), "F32", None);
        let sums_of = |source: &Path, end: &str| {
            let model = Model::load_on(source, &Executor::open("cpu", Some(2)).unwrap()).unwrap();
            let out = scratch.0.join(format!("{name}-{end}"));
            sums(&model, &tokens(32, model.config().vocab), 16).write(&out, "text.txt").unwrap();
            out
        };
        let [of_folder, of_file] = [sums_of(&fixture(name), "folder"), sums_of(&file, "file")];
        let [ours, theirs] = [&of_folder, &of_file].map(|path| GgufFile::open(path).unwrap());
        let names = |file: &GgufFile| file.tensors().map(|t| t.name().to_string()).collect::<BTreeSet<_>>();
        assert_eq!(names(&ours), names(&theirs), "{name}");
        for tensor in ours.tensors() {
            same(&tensor.to_f32().unwrap(), &values(&theirs, tensor.name()), &format!("{name}: {}", tensor.name()));
        }
        for source in [&fixture(name), &file] {
            let (_, missing) = write(source, "Q8_0", Some(Importance::open(&of_folder).unwrap()));
            assert_eq!(missing, [""; 0], "{name}, {}", source.display());
        }
    }
}

fn logits(path: &Path, tokens: &[u32]) -> Vec<f32> {
    let model = Model::load_on(path, &Executor::open("cpu", Some(2)).unwrap()).unwrap();
    let mut session = model.session(SessionOptions { context: 128, ..SessionOptions::default() }).unwrap();
    session.feed(0, tokens, Logits::All).unwrap().to_vec()
}

fn relative_error(got: &[f32], want: &[f32]) -> f32 {
    let squares: f32 = want.iter().map(|v| v * v).sum();
    (got.iter().zip(want).map(|(g, w)| (g - w).powi(2)).sum::<f32>() / squares).sqrt()
}

#[test]
fn importance_makes_quantized_models_better() {
    let scratch = Scratch::new("better");
    let (model, path) = (model(LLAMA), scratch.0.join("imatrix.gguf"));
    let tokens = tokens(96, model.config().vocab);
    sums(&model, &tokens, 32).write(&path, "text.txt").unwrap();
    let (file, source) = (GgufFile::open(&path).unwrap(), GgufFile::open(fixture(LLAMA)).unwrap());
    let exact = logits(&fixture(LLAMA), &tokens);
    for recipe in ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_S", "Q4_0", "Q5_1", "IQ4_XS", "IQ4_NL"] {
        let write = |importance: Option<Importance>| {
            let out = scratch.0.join(format!("{recipe}-{}", importance.is_some()));
            let recipe = Recipe::from_name(recipe).unwrap();
            // The same types in both files.
            let keep = vec![("*ffn_down*".to_string(), recipe.format())];
            let options = QuantizeOptions { importance, keep, threads: 2, ..QuantizeOptions::new(recipe) };
            quantize(&source, &out, &options, &mut |_, _| ControlFlow::Continue(())).unwrap();
            out
        };
        let (plain, weighted) = (write(None), write(Some(Importance::open(&path).unwrap())));
        let error = |quantized: &Path| -> f32 {
            let quantized = GgufFile::open(quantized).unwrap();
            let of = |layer: usize| {
                let name = format!("blk.{layer}.ffn_down.weight");
                let importance = values(&file, &format!("{name}.in_sum2"));
                let (want, got) = (values(&source, &name), values(&quantized, &name));
                let square = |(i, (w, g)): (usize, (&f32, &f32))| importance[i % importance.len()] * (w - g).powi(2);
                want.iter().zip(&got).enumerate().map(square).sum::<f32>()
            };
            (0..model.config().layers).map(of).sum()
        };
        let (without, with) = (error(&plain), error(&weighted));
        assert!(with < without, "{recipe}: {with} instead of {without}");
        let far = |path: &Path| relative_error(&logits(path, &tokens), &exact);
        let (without, with) = (far(&plain), far(&weighted));
        assert!(with < without * 1.05, "{recipe}: {with} instead of {without}");
    }
}
