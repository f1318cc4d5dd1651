//! Quantized files are read back, with the types of the recipe and small errors.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use hologram_backends::DType;
use hologram_llm::gguf::{GgufFile, GgufWriter, NewTensor, TensorType};
use hologram_llm::quantize::{Importance, QuantizeOptions, Recipe, quantize};

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// An empty folder.
fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("hologram-quantize-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

fn options(recipe: &str) -> QuantizeOptions {
    QuantizeOptions { threads: 2, ..QuantizeOptions::new(Recipe::from_name(recipe).unwrap()) }
}

/// The squared error of a tensor as a share of its squares.
fn error(a: &GgufFile, b: &GgufFile, name: &str) -> f32 {
    let [a, b] = [a, b].map(|file| file.tensor(name).unwrap().to_f32().unwrap());
    let squares: f32 = a.iter().map(|v| v * v).sum();
    a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / squares
}

/// A large tensor does not keep one waiting who wants to end the work.
#[test]
fn work_ends_within_a_piece_of_a_tensor() {
    let folder = folder("long");
    let (path, out) = (folder.join("long.gguf"), folder.join("out.gguf"));
    let ty = TensorType::from_name("F32").unwrap();
    let tensors = [NewTensor { name: "blk.0.attn_q.weight".into(), shape: vec![16384, 256], ty }];
    let mut writer = GgufWriter::create(&path, [].into_iter(), &tensors).unwrap();
    let row: Vec<u8> = (0..256).flat_map(|i| ((i * 37 % 101) as f32 - 50.0).to_le_bytes()).collect();
    (0..16384).for_each(|_| writer.write(&row).unwrap());
    writer.finish().unwrap();
    let source = GgufFile::open(&path).unwrap();
    let mut calls = 0;
    let stopped = quantize(&source, &out, &options("Q4_K_M"), &mut |done, of| {
        calls += 1;
        assert!(done < of, "the piece is done before anybody is asked");
        ControlFlow::Break(())
    });
    assert!(stopped.unwrap_err().to_string().contains("stopped before") && calls > 0 && !out.exists());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_recipe_writes_a_file_of_the_same_model() {
    let folder = folder("recipes");
    let source = GgufFile::open(fixture("llama-tiny.gguf")).unwrap();
    for recipe in Recipe::ALL {
        let out = folder.join(recipe.name);
        let (mut last, mut calls) = ((0, 0), 0);
        let done = quantize(&source, &out, &options(recipe.name), &mut |done, of| {
            assert!(done >= last.0 && done <= of);
            (last, calls) = ((done, of), calls + 1);
            ControlFlow::Continue(())
        });
        let done = done.unwrap();
        let file = GgufFile::open(&out).unwrap();
        assert!(calls > 0 && done.to == file.tensors().map(|t| t.data().len() as u64).sum::<u64>());
        assert_eq!(file.get::<u32>("general.file_type").unwrap(), recipe.file_type);
        assert_eq!(file.get::<u32>("general.quantization_version").unwrap(), 2);
        let tokens = |file: &GgufFile| format!("{:?}", file.value("tokenizer.ggml.tokens"));
        assert_eq!(tokens(&file), tokens(&source));
        let names =
            |file: &GgufFile| file.tensors().map(|t| (t.name().to_string(), t.shape().to_vec())).collect::<Vec<_>>();
        assert_eq!(names(&file), names(&source));
        for t in source.tensors() {
            let same = error(&source, &file, t.name());
            // Ternary types keep little of weights that were not trained for them.
            let most = if recipe.name.starts_with("TQ") { 0.9 } else { 0.15 };
            assert!(same <= if t.shape().len() < 2 { 0.0 } else { most }, "{} {}: {same}", recipe.name, t.name());
        }
    }
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn exceptions_and_failures() {
    let folder = folder("failures");
    let source = GgufFile::open(fixture("llama-tiny.gguf")).unwrap();
    let out = folder.join("out.gguf");
    let keep = vec![("blk.1.*".to_string(), DType::BF16), ("*attn_q*".to_string(), DType::Q8_0)];
    let kept = QuantizeOptions { keep, ..options("Q4_0") };
    quantize(&source, &out, &kept, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let file = GgufFile::open(&out).unwrap();
    // Vectors stay as they are beside matrices in blocks.
    let keep = vec![("blk.1.*".to_string(), DType::Q8_0)];
    let mixed = QuantizeOptions { keep, ..options("Q4_0") };
    let second = folder.join("second.gguf");
    quantize(&source, &second, &mixed, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let types = GgufFile::open(&second).unwrap();
    let type_of = |name: &str| types.tensor(name).unwrap().ty().name;
    assert_eq!((type_of("blk.1.attn_q.weight"), type_of("blk.1.attn_norm.weight")), ("Q8_0", "F32"));
    std::fs::remove_file(second).unwrap();
    for (name, want) in [
        ("blk.0.attn_q.weight", "Q8_0"),
        ("blk.0.attn_k.weight", "Q4_0"),
        ("blk.1.attn_q.weight", "BF16"),
        ("blk.1.attn_norm.weight", "BF16"),
        ("output_norm.weight", "F32"),
    ] {
        assert_eq!(file.tensor(name).unwrap().ty().name, want, "{name}");
    }
    let source_path = fixture("llama-tiny.gguf");
    // A type that the file's rows do not fit, the file itself, a folder that does not exist, and one that is full.
    let too_long = QuantizeOptions { keep: vec![("*".into(), DType::Q4_K)], ..options("Q4_0") };
    let unknown = QuantizeOptions { keep: vec![("foo*".into(), DType::F16)], ..options("Q4_0") };
    let vectors = QuantizeOptions { keep: vec![("*norm*".into(), DType::Q8_0)], ..options("Q4_0") };
    let cases: [(&Path, &QuantizeOptions, &str); 6] = [
        (&out, &vectors, "*norm* matches only vectors, which cannot be Q8_0"),
        (&out, &unknown, "no tensor's name matches foo*"),
        (&out, &too_long, "is not whole blocks of Q4_K"),
        (&source_path, &kept, "is also the file to write"),
        (&folder.join("none/out.gguf"), &kept, "cannot write"),
        (Path::new("/dev/full/out.gguf"), &kept, "cannot write"),
    ];
    let before = std::fs::read(&out).unwrap();
    for (path, options, want) in cases {
        let error = quantize(&source, path, options, &mut |_, _| ControlFlow::Continue(())).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
    // What is begun does not follow a link to another file.
    #[cfg(unix)]
    {
        let (victim, partial) = (folder.join("victim.gguf"), folder.join("out.gguf.partial"));
        std::fs::copy(&source_path, &victim).unwrap();
        std::os::unix::fs::symlink(&victim, &partial).unwrap();
        let mapped = GgufFile::open(&victim).unwrap();
        quantize(&mapped, &out, &kept, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), std::fs::read(&source_path).unwrap());
        std::fs::remove_file(victim).unwrap();
    }
    // A link that leads to nothing yet stays, and leads to the result.
    #[cfg(unix)]
    {
        let (link, target) = (folder.join("link.gguf"), folder.join("target.gguf"));
        std::os::unix::fs::symlink("target.gguf", &link).unwrap();
        quantize(&source, &link, &kept, &mut |_, _| ControlFlow::Continue(())).unwrap();
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(std::fs::read(&target).unwrap(), before);
        std::fs::remove_file(link).unwrap();
        std::fs::remove_file(target).unwrap();
    }
    // The caller ends it under way.
    let stopped = quantize(&source, &out, &kept, &mut |_, _| ControlFlow::Break(())).unwrap_err().to_string();
    assert!(stopped.contains("stopped before"), "{stopped}");
    assert_eq!(std::fs::read(&out).unwrap(), before);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing half-written is left");
    let error = Importance::open(&out).unwrap_err().to_string();
    assert!(error.contains("is not an importance matrix"), "{error}");
    std::fs::remove_dir_all(folder).unwrap();
}
