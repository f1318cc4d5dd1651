//! `imatrix`, and `quantize` of folders and with an importance matrix.

use crate::common::{BITNET, Folder, LLAMA, command, ok, rejected, text as text_of};
use hologram_llm::gguf::GgufFile;

/// The bytes of a file in which the tensors with this part of their name are called otherwise.
fn without(path: &str, part: &str) -> Vec<u8> {
    let mut file = std::fs::read(path).unwrap();
    let places: Vec<usize> =
        (0..file.len() - part.len()).filter(|at| file[*at..].starts_with(part.as_bytes())).collect();
    assert!(!places.is_empty(), "{part} is not in {path}");
    places.into_iter().for_each(|at| file[at] = b'_');
    file
}

#[test]
fn an_importance_matrix_is_written_and_used() {
    let folder = Folder::new("imatrix");
    let text = folder.write("text.txt", "one two three four five six seven eight nine ten ".repeat(20));
    let (out, model) = (folder.path("imatrix.gguf"), folder.path("q.gguf"));
    let args = ["imatrix", "-m", LLAMA, "-f", &text, "-o", &out, "--ctx", "16", "--chunks", "3", "--device", "cpu"];
    ok(&args);
    let file = GgufFile::open(&out).unwrap();
    assert_eq!(file.get::<u32>("imatrix.chunk_count").unwrap(), 3);
    assert_eq!(file.tensor("blk.0.attn_q.weight.counts").unwrap().to_f32().unwrap(), [48.0]);
    let size = |imatrix: &[&str]| {
        ok(&[&["quantize", LLAMA, &model, "--type", "Q4_0"], imatrix].concat());
        std::fs::read(&model).unwrap()
    };
    assert_ne!(size(&["--imatrix", &out]), size(&[]));

    // A matrix that lacks some entries says which; one without gaps says nothing.
    let note = |imatrix: &str| {
        let output = command(&["quantize", LLAMA, &model, "--type", "Q4_0", "--imatrix", imatrix]).output().unwrap();
        assert!(output.status.success(), "{}", text_of(&output.stderr));
        text_of(&output.stderr)
    };
    assert!(!note(&out).contains("note:"), "{}", note(&out));
    let partial = folder.write("partial.gguf", without(&out, "blk.1.attn_k.weight"));
    let said = "partial.gguf has no entry for 1 quantized tensor, blk.1.attn_k.weight first: its columns count alike\n";
    assert!(note(&partial).contains(said), "{}", note(&partial));
    let shorter = folder.write("shorter.gguf", without(&out, "in_sum2"));
    rejected(&["quantize", LLAMA, &model, "--type", "Q4_0", "--imatrix", &shorter], 1, &["not an importance matrix"]);

    let bad = |args: &[&str], want: &str| rejected(&[&["imatrix"], args].concat(), 1, &[want]);
    let none = folder.path("none/out.gguf");
    bad(&[LLAMA, "-f", &text, "-o", &none, "--ctx", "16"], "cannot write");
    bad(&[LLAMA, "-f", &text, "-o", &out, "--ctx", "4000"], "fewer than a window of 4000");
    bad(&[LLAMA, "-f", "none.txt", "-o", &out], "cannot read none.txt");
    bad(&[BITNET, "-f", &text, "-o", &out], "the file has no tokenizer");
    rejected(&["imatrix", LLAMA, "-f", &text], 2, &["--out"]);
    bad(&[LLAMA, "-f", &text, "-o", &text, "--ctx", "16"], "is also read; write to another name");
    bad(&[LLAMA, "-f", &text, "-o", LLAMA, "--ctx", "16"], "is also read; write to another name");
    rejected(&["quantize", &out, &model, "--type", "Q4_0"], 1, &["is of type imatrix, not a model"]);
    // A matrix of another model.
    let other = LLAMA.replace("llama-tiny.gguf", "qwen3/model.gguf");
    rejected(&["quantize", &other, &model, "--type", "Q4_0", "--imatrix", &out], 1, &["it is for another model"]);
}

#[test]
fn folders_become_files() {
    let folder = Folder::new("quantize-folder");
    let (source, out) = (LLAMA.replace("llama-tiny.gguf", "qwen3"), folder.path("q.gguf"));
    ok(&["quantize", &source, &out, "--type", "Q8_0", "--keep", "*attn_q*=F16"]);
    let file = GgufFile::open(&out).unwrap();
    assert_eq!(file.tensor("blk.0.attn_q.weight").unwrap().ty().name, "F16");
    assert!(ok(&["inspect", &out]).contains("qwen3"));
    rejected(&["quantize", &source, &out, "--type", "Q8_0", "--keep", "foo=F16"], 1, &["no tensor's name matches foo"]);
    // GGUF files have no word for this order of rotary pairs.
    let latent = folder.path("latent");
    std::fs::create_dir(&latent).unwrap();
    for entry in std::fs::read_dir(LLAMA.replace("llama-tiny.gguf", "deepseek-v2")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), format!("{latent}/{}", entry.file_name().to_str().unwrap())).unwrap();
    }
    let config = format!("{latent}/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, text.replacen('{', "{\"rope_interleave\": false, ", 1)).unwrap();
    rejected(&["quantize", &latent, &out, "--type", "Q8_0"], 1, &["latent", "rope_interleave", "is not supported"]);
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2, "something is left");
}
