//! Plausible mistakes of somebody new, each answered by one sentence that says what is wrong or what to do instead.

use std::fs;

use crate::common::*;

const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../hologram-llm/tests/fixtures/bert/model.gguf");

/// A working folder with what people have lying about.
fn folder() -> Folder {
    let folder = Folder::new("mistakes");
    for name in ["full", "mlx", "empty"] {
        fs::create_dir_all(folder.path(name)).unwrap();
    }
    fs::copy(LLAMA, folder.path("L.gguf")).unwrap();
    fs::copy(LLAMA, folder.path("full/model-Q8_0.gguf")).unwrap();
    fs::copy(VECTOR_ADD, folder.path("add.atlas")).unwrap();
    let long = |start: &[u8]| [start, &[b'a'; 64]].concat();
    folder.write("model.pth", long(b"PK\x03\x04"));
    folder.write("pointer.gguf", long(b"version https://git-lfs.github.com/spec/v1\n"));
    folder.write("page.gguf", long(b"<!DOCTYPE html>"));
    folder.write("model.gguf.gz", long(b"\x1f\x8b\x08"));
    folder.write("model.safetensors", "");
    folder.write("text.txt", "A text that somebody wants to have continued.\n");
    folder.write("lines.txt", "one\n\ntwo\n");
    folder.write("long.txt", format!("one\n{}\n", "word ".repeat(300)));
    folder.write("empty.txt", "");
    folder.write("text.json", "{}");
    fs::copy(VECTOR_ADD, folder.path("add.json")).unwrap();
    fs::create_dir_all(folder.path("torch")).unwrap();
    folder.write("torch/config.json", "{}");
    folder.write("torch/pytorch_model.bin", "");
    folder.write("bad.gbnf", "root ::= other\n");
    folder.write("bad.lark", "start: \"a\n");
    folder.write("bad.json", "{\"type\": 5}");
    folder.write("add.cu", "__global__ void add(float* x) { x[threadIdx.x] += 1; }\n");
    folder.write("add.metal", "#include <metal_stdlib>\nkernel void add(device float* x) {}\n");
    folder.write("add.wgsl", "@compute @workgroup_size(64) fn main() {}\n");
    folder.write("x.npy", f32_npy(&[1.0, 2.0]));
    #[cfg(unix)]
    for link in ["link.gguf", "link.json"] {
        std::os::unix::fs::symlink("L.gguf", folder.path(link)).unwrap();
    }
    #[cfg(not(unix))]
    fs::copy(LLAMA, folder.path("link.gguf")).unwrap();
    let kernel = |line: &str| {
        format!(
            "kernel f(x: buffer<f32, write>) workgroup(64) {{\n %v = load.f32 x[0]\n {line}\n store.f32 x[0], %w\n}}\n"
        )
    };
    folder.write("relu.atlas", kernel("%w = relu.f32 %v"));
    folder.write("dvi.atlas", kernel("%w = dvi.f32 %v, %v"));
    folder.write("write.atlas", kernel("%w = add.f32 %v, %v"));
    folder
}

#[test]
fn every_mistake_is_answered_in_a_sentence() {
    let folder = folder();
    let cases: &[(&[&str], i32, &str)] = &[
        // A model without its command, and in other tools' ways.
        (&["L.gguf"], 2, "use `hologram run L.gguf` or `hologram chat L.gguf`"),
        (&["L.gguf", "Hello"], 2, "use `hologram run L.gguf`"),
        (&["hf:org/model"], 2, "use `hologram run hf:org/model`"),
        (&["-m", "L.gguf", "-p", "Hi"], 2, "use `hologram run -m MODEL`"),
        (&["run", "missing.gguf"], 1, "cannot open missing.gguf"),
        (&["run", "missing.gguf", "Hello"], 1, "cannot open missing.gguf"),
        (&["chat", "missing.gguf"], 1, "cannot open missing.gguf"),
        (&["chat"], 2, "give a chat model"),
        (&["run", "hello", "world"], 2, "put the prompt in quotes"),
        (&["run", "L.gguf", "hello", "world"], 2, "put the prompt in quotes"),
        (&["run", "org/model"], 2, "-m hf:org/model takes it from Hugging Face"),
        (&["chat", "org/model"], 2, "-m hf:org/model takes it from Hugging Face"),
        (&["run", "org/model", "Hi"], 2, "-m hf:org/model takes it from Hugging Face"),
        (&["run", "https://huggingface.co/a/b/resolve/main/c.gguf", "Hi"], 2, "give hf:a/b:c.gguf instead"),
        (&["run", "-m", "L.gguf", "full/model-Q8_0.gguf"], 2, "one model at a time"),
        (&["bench", "L.gguf", "L.gguf"], 2, "one model at a time"),
        (&["run", "-m", "-", "Hi"], 2, "cannot be read from standard input"),
        // Files of another kind.
        (&["run", "model.pth", "Hi"], 1, "perhaps a PyTorch checkpoint: convert it to GGUF"),
        (&["run", "pointer.gguf", "Hi"], 1, "run `git lfs pull`"),
        (&["run", "page.gguf", "Hi"], 1, "it is a web page, not a model"),
        (&["run", "model.gguf.gz", "Hi"], 1, "instead of \"GGUF\""),
        (&["run", "model.safetensors", "Hi"], 1, "give the folder that contains its files"),
        (&["run", "empty", "Hi"], 1, "has no config.json"),
        (&["run", "full", "Hi"], 1, "give the file full/model-Q8_0.gguf in it instead"),
        (&["run", "text.txt", "Hi"], 1, "it is a text, not a model; `hologram run -f FILE` takes it as the prompt"),
        (&["run", BERT, "Hi"], 1, "is an encoder, which continues no text: `hologram embed`"),
        // Texts to embed: none is left out.
        (&["embed", "-m", BERT], 2, "standard input has no texts: give texts as arguments"),
        (&["embed", "-m", BERT, "one", ""], 2, "text 2 is empty"),
        (&["embed", "-m", BERT, "--file", "lines.txt"], 1, "line 2 of lines.txt is empty"),
        (&["rerank", "-m", BERT, "q", "--file", "lines.txt"], 1, "line 2 of lines.txt is empty"),
        (
            &["embed", "-m", BERT, "--file", "long.txt"],
            1,
            "line 2 of long.txt has 1202 tokens, but the model takes at most 96",
        ),
        (&["embed", "-m", BERT, "--file", "empty.txt"], 2, "empty.txt has no texts"),
        (&["quantize", "L.gguf", "q.gguf", "--type", "Q4_0", "--keep", "foo*=F16"], 1, "no tensor's name matches foo*"),
        (&["quantize", "L.gguf", "q.gguf", "--type", "Q4_0", "--keep", "=F16"], 2, "has no pattern before the ="),
        (
            &["quantize", "L.gguf", "q.gguf", "--type", "Q4_0", "--keep", "*norm*=Q8_0"],
            1,
            "*norm* matches only vectors, which cannot be Q8_0: give F32, F16 or BF16",
        ),
        // A question that is also the name of a folder.
        (&["chat", "-m", "L.gguf", "full"], 1, "chat template"),
        (&["pull", "nothere"], 2, "a model has an owner and a name"),
        (
            &["quantize", "L.gguf", "q.gguf", "--type", "IQ2_XS"],
            2,
            "IQ2_XS is read, but not written: choose one of F32",
        ),
        (&["quantize", "L.gguf", "q.gguf", "--type", "Q4"], 2, "Q3_K, Q4_K and Q5_K mean their _M mixtures"),
        (&["quantize", "L.gguf", "L.gguf", "--type", "Q4_0"], 1, "is also the file to write"),
        (&["bench", "L.gguf", "--speculate", "4"], 2, "--speculate needs --concurrency"),
        (&["bench", "L.gguf", "--logprobs", "4"], 2, "--logprobs needs --concurrency"),
        // A server.
        (&["serve", "--alias", ""], 2, "'--alias"),
        (&["serve", "-m", "L.gguf", "-m", "dir/L.gguf"], 2, "two models have the name L; name them by -m NAME=PATH"),
        (&["serve", "-m", "a=L.gguf", "-m", "L.gguf", "--alias", "b"], 2, "--alias is for one model, but there are 2"),
        (&["serve", "--port", "0", "-m", "a=L.gguf", "-m", "b=no-such.gguf"], 1, "no-such.gguf"),
        (&["serve", "--max-loaded", "0"], 2, "'--max-loaded"),
        (&["serve", "L.gguf", "--draft", "L.gguf", "--speculate", "off"], 2, "give one of them"),
        (&["serve", "--speculate", "-3"], 2, "it must be auto, off, or a number from 0 to 15"),
        (&["serve", "--unload-after", "-1"], 2, "'-1' for '--unload-after <S>': it must be a whole number from 1"),
        (&["serve", "--ctx", "-1"], 2, "it must be a whole number from 0 to"),
        (&["serve", "--port", "-1"], 2, "it must be a whole number from 0 to 65535"),
        (&["load", "--users", "-2"], 2, "it must be a whole number from 1 to 4096"),
        (&["load", "--rate", "-2"], 2, "it must be a number from 0.001"),
        (
            &["quantize", "L.gguf", "q.gguf", "--type", "Q4_0", "-t", "-2"],
            2,
            "it must be a whole number from 1 to 1024, or -1",
        ),
        (&["logits", "L.gguf", "--tokens", "-1", "--out", "o.npy"], 2, "it must be a whole number from 0 to"),
        (
            &["logits", "L.gguf", "--tokens", "1,-2", "--out", "o.npy"],
            2,
            "'-2' for '--tokens <IDS>': it must be a whole",
        ),
        (&["embed", "-m", BERT, "--tokens", "-1"], 2, "it must be a whole number from 0 to"),
        (&["serve", "--drain-timeout", "-1"], 2, "it must be a whole number from 0 to 86400"),
        // Results in place of what they come from.
        (&["logits", "L.gguf", "--tokens", "5", "--out", "L.gguf"], 1, "L.gguf is also read; write to another name"),
        #[cfg(unix)]
        (&["logits", "L.gguf", "--tokens", "5", "--out", "link.gguf"], 1, "link.gguf is also read"),
        #[cfg(unix)]
        (&["logits", "link.gguf", "--tokens", "5", "--out", "./L.gguf"], 1, "./L.gguf is also read"),
        (&["logits", "L.gguf", "--tokens", "5", "--lora", "x.npy", "--out", "x.npy"], 1, "x.npy is also read"),
        (&["embed", "-m", BERT, "--file", "text.txt", "--out", "text.txt"], 1, "text.txt is also read"),
        (&["embed", "-m", BERT, "a text", "--out", BERT], 1, "model.gguf is also read"),
        (&["imatrix", "L.gguf", "-f", "text.txt", "-o", "text.txt"], 1, "text.txt is also read"),
        (&["quantize", "L.gguf", "x.npy", "--type", "Q4_0", "--imatrix", "x.npy"], 1, "x.npy is also read"),
        (
            &["exec", "add.atlas", "--grid", "1", "--arg", "x=@x.npy", "--arg", "y=@x.npy", "--out", "x.npy"],
            1,
            "x.npy is also read",
        ),
        (&["exec", "add.atlas", "--grid", "1", "--arg", "x=@x.npy", "--out", "add.atlas"], 1, "add.atlas is also read"),
        // A timeline's name ends in .json, as links may.
        #[cfg(unix)]
        (&["run", "L.gguf", "Hi", "--profile", "link.json"], 1, "link.json is also read"),
        #[cfg(unix)]
        (&["bench", "L.gguf", "-p", "1", "-n", "0", "-r", "1", "--profile", "link.json"], 1, "link.json is also read"),
        (&["run", "L.gguf", "-f", "text.json", "--profile", "text.json"], 1, "text.json is also read"),
        (
            &["exec", "add.json", "--grid", "1", "--arg", "x=@x.npy", "--arg", "y=@x.npy", "--profile", "add.json"],
            1,
            "add.json is also read",
        ),
        (&["run", "L.gguf", "Hi", "--cpu"], 2, "--device cpu computes on the CPU; see hologram run --help"),
        (&["run", "L.gguf", "Hi", "-n", "-2"], 2, "0 or more, or -1 for no limit"),
        // Models as other tools name them.
        (&["run", "llama3.2"], 2, "there is no file or folder llama3.2; `hologram models` lists"),
        (&["run", "ollama:llama3", "Hi"], 2, "hf:OWNER/NAME takes one from Hugging Face"),
        (&["chat", "qwen3:0.6b"], 2, "there is no file or folder qwen3:0.6b"),
        (&["run", "hf.co/a/b:Q8_0"], 2, "-m hf:a/b:Q8_0 takes it from Hugging Face"),
        (&["run", "my.ggfu", "Hi there"], 1, "cannot open my.ggfu"),
        (&["pull", "https://huggingface.co/a/b"], 2, "give hf:a/b instead of an address"),
        (&["run", "-hf", "a/b", "Hi"], 2, "unexpected argument '-hf'; -m hf:OWNER/NAME[:TYPE] takes a model"),
        (&["run", "L.gguf", "Hi", "-ctk", "q8_0"], 2, "--kv sets the element type of the KV cache"),
        (&["run", "L.gguf", "-no-cnv", "Hi"], 2, "--raw"),
        (&["run", "L.gguf", "Hi", "--system", "be short"], 2, "`hologram chat --system`"),
        (&["completion", "bash"], 2, "use `hologram completions`"),
        (&["run", "torch", "Hi"], 1, "pytorch_model.bin of PyTorch: convert it"),
        (&["asm", "add.atlas", "-o", "add.atlas"], 1, "add.atlas is also read"),
        // Files that cannot be standard output, and names that are empty.
        (&["quantize", "L.gguf", "-", "--type", "Q4_0"], 2, "cannot be standard output: give a file's name"),
        (&["imatrix", "L.gguf", "-f", "text.txt", "-o", "-"], 2, "cannot be standard output: give a file's name"),
        (&["run", "L.gguf", "Hi", "--lora", "x:"], 2, "the scale after the colon is missing"),
        (&["run", "L.gguf", "Hi", "--lora", "L.gguf:"], 2, "the scale after the colon is missing"),
        (&["run", "L.gguf", "Hi", "--lora", ""], 2, "'--lora <FILE[:SCALE]>': the file's name is missing"),
        (&["run", "L.gguf", "Hi", "--lora", ":0.5"], 2, "the file's name is missing"),
        (&["run", "-m", "", "Hi"], 2, "'--model <MODEL>'"),
        (&["run", "", "Hi"], 2, "name"),
        (&["run", "L.gguf", "-f", ""], 2, "'--file <FILE>'"),
        (&["quantize", "L.gguf", "", "--type", "Q4_0"], 2, "'[OUT]'"),
        (&["exec", "add.atlas", "--grid", "1", "--arg", "x=@"], 2, "the file"),
        (&["pull", ""], 2, "name"),
        (&["rm", ""], 2, "name"),
        (&["serve", "-m", ""], 2, "'--model <MODEL>'"),
        (&["serve", "-m", "a="], 2, "name"),
        // Words of other tools.
        (&["rnu", "Hi"], 2, "use `hologram run`"),
        (&["list"], 2, "use `hologram models`"),
        (&["ls"], 2, "use `hologram models`"),
        (&["download", "org/model"], 2, "use `hologram pull`"),
        (&["remove", "org/model"], 2, "use `hologram rm`"),
        (&["show", "L.gguf"], 2, "use `hologram inspect`"),
        (&["generate", "Hi"], 2, "use `hologram run`"),
        (&["benchmark"], 2, "use `hologram bench`"),
        (&["version"], 2, "use `hologram --version`"),
        (&["run", "L.gguf", "Hi", "-ngl", "99"], 2, "`--device cpu` keeps it off"),
        (&["run", "L.gguf", "Hi", "--n-gpu-layers", "99"], 2, "`--device cpu` keeps it off"),
        (&["run", "L.gguf", "Hi", "--top_p", "0.9"], 2, "'--top-p'"),
        (&["run", "L.gguf", "Hi", "--device", "gpu"], 2, "use one of: auto"),
        (&["perplexity", "L.gguf", "text.txt"], 2, "use --file text.txt"),
        // Values.
        (&["run", "L.gguf", "Hi", "-t", "0"], 2, "it must be a whole number from 1 to 1024"),
        (
            &["run", "L.gguf", "Hi", "-t", "two"],
            2,
            "'two' for '--threads <N>': it must be a whole number from 1 to 1024",
        ),
        (&["run", "L.gguf", "Hi", "--threads=two"], 2, "it must be a whole number from 1 to 1024"),
        (&["bench", "L.gguf", "-r", "x"], 2, "it must be a whole number from 1 to 1000"),
        (&["perplexity", "L.gguf", "--file", "text.txt", "--ctx", "x"], 2, "from 4 to 1048576"),
        (&["run", "L.gguf", "Hi", "-n", "x"], 2, "it must be a whole number, 0 or more"),
        (&["run", "L.gguf", "Hi", "-c", "-1"], 2, "it must be a whole number from 0 to"),
        (&["run", "L.gguf", "Hi", "-c", "2"], 1, "shorten the prompt or increase --ctx"),
        (&["run", "L.gguf", "Hi", "--temp", "warm"], 2, "it must be a number"),
        (&["run", "L.gguf", "Hi", "--temp=-1"], 2, "must be a finite number, 0 or more"),
        (&["run", "L.gguf", "Hi", "--kv", "q5"], 2, "possible values: f32, f16, f8, q8, q4"),
        (&["run", "L.gguf"], 2, "the prompt on standard input is empty"),
        (&["bench", "L.gguf", "-p", "x"], 2, "it must be a whole number"),
        (&["bench", "--shape", "llama-1b"], 2, "for example --type Q8_0"),
        (&["bench", "--type", "Q4_0"], 2, "requires --shape"),
        (&["logits", "L.gguf", "--tokens", "999", "--out", "o.npy"], 1, "must be below 384"),
        (&["perplexity", "L.gguf", "--file", "none.txt"], 1, "cannot read none.txt"),
        (&["rm", "L.gguf"], 2, "(it must be hf:OWNER/NAME); delete the file yourself"),
        (&["selftest", "--device", "cuda:99"], 1, "not available"),
        (&["selftest", "--precision", "tf32"], 2, "--precision is not for selftest"),
        (&["run", "L.gguf", "Hi", "--temp", "inf"], 2, "is inf, but must be a finite number, 0 or more"),
        (&["run", "L.gguf", "Hi", "-n", "99999999999999999999"], 2, "it is too large; -1 is no limit"),
        (&["run", "L.gguf", "Hi", "--gpu-memory", "-1GB"], 2, "'-1GB' for '--gpu-memory <SIZE>': it must be a number"),
        (&["run", "L.gguf", "Hi", "--gpu-memory", "16"], 2, "above 0 with a unit, such as 16GB"),
        (&["run", "L.gguf", "Hi", "--device", "cpu", "--gpu-memory", "1TB"], 2, "--gpu-memory is for GPUs"),
        (
            &["run", "L.gguf", "Hi", "--device", "cpu", "--precision", "tf32"],
            2,
            "tf32 is for NVIDIA GPUs, but the device is cpu",
        ),
        (&["serve", "--kv-memory", "-1GB"], 2, "'-1GB' for '--kv-memory <MIB>': it must be a number above 0"),
        (&["serve", "--kv-memory", "0"], 2, "a number above 0 of MiB, or with a unit, such as 2GB"),
        // A model that is given twice, and prompts in several words.
        (&["run", "L.gguf", "fn main", "--model", "L.gguf"], 2, "the model is given twice, as L.gguf and by -m"),
        (&["run", "-m", "L.gguf", "L.gguf", "hi"], 2, "the model is given twice, as L.gguf and by -m"),
        (&["chat", "L.gguf", "hello", "-m", "L.gguf"], 2, "the model is given twice"),
        (&["embed", "-m", BERT, BERT, "hi"], 2, "the model is given twice"),
        (&["chat", "L.gguf", "a", "b"], 2, "the prompt is in 2 words: put the prompt in quotes"),
        (&["run", "L.gguf", "a", "b", "c", "d"], 2, "the prompt is in 4 words: put the prompt in quotes"),
        (&["run", "tell", "me", "a", "story"], 2, "the prompt is in 4 words: put the prompt in quotes"),
        (&["tokenize", "L.gguf", "a", "b"], 2, "the prompt is in 2 words: put the prompt in quotes"),
        // Quantizing in other orders.
        (
            &["quantize", "Q4_K_M", "L.gguf", "q.gguf"],
            2,
            "the type stands last: hologram quantize IN.gguf OUT.gguf TYPE",
        ),
        (
            &["quantize", "L.gguf", "Q4_K_M", "q.gguf"],
            2,
            "the type stands last: hologram quantize L.gguf q.gguf Q4_K_M",
        ),
        (
            &["quantize", "L.gguf", "Q4_K_M"],
            2,
            "the file to write is missing: hologram quantize L.gguf OUT.gguf Q4_K_M",
        ),
        (
            &["quantize", "L.gguf", "q.gguf"],
            2,
            "the type is missing: for example hologram quantize L.gguf q.gguf Q4_K_M",
        ),
        (&["quantize", "L.gguf"], 2, "the file to write is missing: hologram quantize L.gguf OUT.gguf Q4_K_M"),
        (
            &["quantize", "L.gguf", "--type", "Q8_0"],
            2,
            "the file to write is missing: hologram quantize L.gguf OUT.gguf Q8_0",
        ),
        (&["quantize", "L.gguf", "q.gguf", "Q4_0", "8"], 2, "use -t 8"),
        (&["quantize", "L.gguf", "q.gguf", "Q4_0", "--type", "Q8_0"], 2, "cannot be used with"),
        (&["quantize", "L.gguf", "--outfile", "q.gguf"], 2, "the file to write stands after the model"),
        // Grammars.
        (&["run", "L.gguf", "Hi", "--grammar", "bad.gbnf"], 1, "bad.gbnf: the grammar has no rule \"other\""),
        (&["run", "L.gguf", "Hi", "--grammar", "bad.lark"], 1, "bad.lark: "),
        (&["run", "L.gguf", "Hi", "--json-schema", "bad.json"], 1, "bad.json: "),
        (&["run", "L.gguf", "Hi", "--json-schema", "{\"type\": 5}"], 1, "--json-schema: "),
        // Models of embed and rerank.
        (&["embed", "hi"], 2, "hi names no model: hologram embed MODEL TEXT"),
        (&["embed"], 2, "give a model: hologram embed MODEL TEXT"),
        (&["rerank", "Who wrote it?", "A"], 2, "\"Who wrote it?\" names no model: hologram rerank MODEL QUERY TEXT"),
        (&["rerank", BERT], 2, "give a query: hologram rerank MODEL QUERY TEXT"),
        (&["rerank", BERT, "q", "a", "--file", "lines.txt"], 2, "the text a cannot be used with --file"),
        (&["embed", BERT, "a", "--tokens", "5"], 2, "the text a cannot be used with --file or --tokens"),
        // Options of other engines.
        (&["run", "L.gguf", "Hi", "--flash-attn"], 2, "attention is always fused"),
        (&["run", "L.gguf", "Hi", "-fa", "on"], 2, "attention is always fused"),
        (&["serve", "L.gguf", "--max-model-len", "4096"], 2, "-c N sets the length of the context"),
        (&["run", "L.gguf", "Hi", "--max-kv-size", "512"], 2, "-c N sets the length of the context"),
        (&["serve", "--gpu-memory-utilization", "0.9"], 2, "--gpu-memory SIZE limits the GPU's memory"),
        (&["run", "L.gguf", "-i"], 2, "`hologram chat` converses"),
        (&["run", "L.gguf", "Hi", "-b", "512"], 2, "a prompt is computed in pieces"),
        (&["run", "L.gguf", "Hi", "-ub", "512"], 2, "a prompt is computed in pieces"),
        (&["run", "L.gguf", "Hi", "--batch-size", "512"], 2, "a prompt is computed in pieces"),
        (&["run", "L.gguf", "Hi", "--ubatch-size", "512"], 2, "a prompt is computed in pieces"),
        (&["run", "L.gguf", "Hi", "--mlock"], 2, "a model's file is mapped into memory"),
        (&["run", "L.gguf", "Hi", "--no-mmap"], 2, "a model's file is mapped into memory"),
        (&["run", "L.gguf", "Hi", "-v"], 2, "figures of each text are always shown, and --json prints them"),
        (&["run", "L.gguf", "Hi", "--verbose"], 2, "figures of each text are always shown"),
        (&["bench", "L.gguf", "-o", "json"], 2, "use --json"),
        (&["serve", "L.gguf", "-p", "8000"], 2, "use --port"),
        (&["serve", "L.gguf", "--tensor-parallel-size", "2"], 2, "a model is on one GPU"),
        (&["serve", "L.gguf", "--served-model-name", "x"], 2, "--alias names the model for clients"),
        (&["run", "L.gguf", "Hi", "-mg", "1"], 2, "--device cuda:N chooses"),
        (&["run", "--model-id", "org/model", "Hi"], 2, "-m takes a file, a folder or hf:OWNER/NAME"),
        (&["run", "L.gguf", "Hi", "--sample-len", "9"], 2, "-n N sets the number of tokens"),
        (&["run", "L.gguf", "Hi", "--kv-bits", "4"], 2, "--kv sets the element type"),
        (&["run", "L.gguf", "Hi", "--hidethinking"], 2, "--think show, hide or off"),
        (&["run", "L.gguf", "Hi", "--format", "json"], 2, "--json prints one JSON object"),
        (&["run", "L.gguf", "Hi", "--trust-remote-code"], 2, "no code of a model's repository is ever run"),
        (&["run", "L.gguf", "Hi", "--rope-freq-base", "1e6"], 2, "the model's files say how positions are encoded"),
        (&["run", "L.gguf", "Hi", "--mirostat", "2"], 2, "tokens are sampled by temperature, top-k"),
        (&["run", "L.gguf", "Hi", "--image", "a.png"], 2, "models that see or hear are not supported"),
        (&["chat", "L.gguf", "--chat-template", "chatml"], 2, "`hologram serve --chat-template FILE`"),
        (&["run", "L.gguf", "Hi", "--keep", "5"], 2, "drops the oldest turns of a full context"),
        (&["run", "L.gguf", "Hi", "--tokenizer", "t.json"], 2, "the tokenizer is that of the model's files"),
        (&["run", "L.gguf", "Hi", "--tracing"], 2, "--profile OUT.json writes a timeline"),
        (&["run", "L.gguf", "Hi", "--bf16"], 2, "a model runs in the types of its file"),
        (&["run", "L.gguf", "Hi", "--override-kv", "a=b"], 2, "the metadata of a model's file are used as they are"),
        (&["pull", "a/b", "--include", "*.gguf"], 2, "hf:OWNER/NAME:FILE takes one file"),
        // Files and names in the wrong place.
        (&["pull", "./chat.gguf"], 2, "./chat.gguf is a file's name: `hologram run ./chat.gguf` runs it"),
        (&["pull", "L.gguf"], 2, "L.gguf is a file's name"),
        (&["pull", "llama3.2"], 2, "llama3.2 does not name a model on Hugging Face: a model has an owner and a name"),
        (&["rm", "chat.gguf"], 2, "delete the file yourself"),
        // Commands of other tools.
        (&["hello"], 2, "unrecognized subcommand 'hello'; `hologram run \"hello\"` continues a text"),
        (&["quantise"], 2, "'quantize'"),
        (&["help", "rnu"], 2, "use `hologram run`"),
        (&["ollama", "run", "llama3"], 2, "leave it out"),
        (&["llama-server", "-m", "L.gguf"], 2, "use `hologram serve`"),
        (&["create", "m", "-f", "Modelfile"], 2, "system prompts and settings are options"),
        (&["login"], 2, "HF_TOKEN holds a token of Hugging Face"),
        (&["convert", "L.gguf"], 2, "use `hologram quantize IN OUT.gguf TYPE`"),
        (&["train"], 2, "training is in Rust and Python"),
        (&["stop", "llama3"], 2, "Ctrl-C ends `hologram serve`"),
        (&["models", "ls"], 2, "`hologram models` alone lists them"),
        (&["models", "rm", "a/b"], 2, "use `hologram rm`"),
        (&["cache", "clear"], 2, "use --clear"),
        (&["serve", "L.gguf", "8000"], 2, "use --port 8000"),
        (&["serve", "--host", "0.0.0.0:8000"], 2, "--port 8000 sets the port, --host the address alone"),
        (&["serve", "--embeddings"], 2, "/v1/embeddings is always served"),
        (&["serve", "--cors"], 2, "use --cors-origin"),
        (&["bench", "L.gguf", "--n-prompt", "5"], 2, "use -p"),
        (&["bench", "L.gguf", "--n-gen", "5"], 2, "use -n"),
        (&["run", "L.gguf", "--prompt-file", "text.txt"], 2, "use --file"),
        (&["tokenize", "L.gguf", "--prompt", "hi"], 2, "the text stands after the model"),
        (&["inspect", "L.gguf", "--verbose"], 2, "unexpected argument '--verbose' found; see hologram inspect --help"),
        (&["exec", "add.atlas", "4"], 2, "use --grid 4"),
        (&["exec", "add.atlas", "--grid", "4", "x=@x.npy"], 2, "use --arg x=@x.npy"),
        (&["exec", "add.atlas", "--grid", "4", "--block", "64"], 2, "the program says how large a workgroup is"),
        (&["check", "add.atlas", "--device", "cuda"], 2, "a program is checked for every device"),
        (&["asm", "add.atlas", "out.bin"], 2, "use -o out.bin"),
        (&["run", "L.gguf:latest", "Hi"], 1, "cannot open L.gguf:latest"),
        (&["run", "L.gguf tell me a story"], 2, "names a model and a prompt: end the quotes after the model"),
        (&["run", "L.gguf", "Hi", "--grammar", "root ::= other"], 1, "--grammar: the grammar has no rule \"other\""),
        (&["run", "L.gguf", "Hi", "--seed", "-5"], 2, "or -1 for another one each time"),
        (&["Hello"], 2, "`hologram run \"Hello\"` continues a text"),
        (&["Tell me a story"], 2, "`hologram run \"Tell me a story\"` continues a text"),
        // Programs.
        (&["check", "add.cu"], 1, "add.cu is CUDA, not Atlas: docs/atlas.md"),
        (&["exec", "add.metal", "--grid", "1"], 1, "add.metal is Metal, not Atlas"),
        (&["check", "add.wgsl"], 1, "add.wgsl is WGSL, not Atlas"),
        (&["exec", "add.atlas"], 2, "give the number of workgroups"),
        (&["exec", "add.atlas", "--grid", "4"], 2, "x=… is missing: a buffer of f32"),
        (&["exec", "add.atlas", "--grid", "4", "--arg", "a=1"], 2, "it has x: buffer of f32"),
        (&["exec", "add.atlas", "--emit", "cuda"], 2, "possible values: ptx, msl"),
        (&["check", "dvi.atlas"], 1, "the nearest is `div`"),
        (&["check", "write.atlas"], 1, "x is write-only and cannot be loaded from"),
        (&["check", "L.gguf"], 1, "neither a binary program nor text"),
        (&["disasm", "add.atlas"], 1, "`hologram asm` converts text to binary form"),
    ];
    let mut wrong = Vec::new();
    for (args, code, words) in cases {
        let output = command(args).current_dir(&folder.0).output().unwrap();
        let (got, message) = (output.status.code(), text(&output.stderr));
        let sentence = message.starts_with("hologram: ") && message.lines().count() == 1;
        if got != Some(*code) || !message.contains(words) || !sentence {
            wrong.push(format!("{args:?} gave {got:?}: {message}wanted {code}: {words}"));
        }
    }
    assert!(cases.len() >= 50 && wrong.is_empty(), "{}", wrong.join("\n"));
    // A word that is close to nothing gets no tip.
    let output = command(&["check", "relu.atlas"]).current_dir(&folder.0).output().unwrap();
    assert!(!text(&output.stderr).contains("nearest"), "{}", text(&output.stderr));
}

/// Messages name the command, not the file that it is in.
#[cfg(unix)]
#[test]
fn a_renamed_command_is_still_called_hologram() {
    let folder = Folder::new("renamed");
    let other = folder.path("hologram-bin");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_hologram"), &other).unwrap();
    let output = std::process::Command::new(other).args(["run", "--nothing"]).output().unwrap();
    let message = text(&output.stderr);
    assert!(message.contains("see hologram run --help") && !message.contains("hologram-bin"), "{message}");
}

#[test]
fn without_a_home_folder_messages_say_what_to_set() {
    let call = |home: Option<&str>, args: &[&str]| {
        let output = command(args).env_clear().envs(home.map(|home| ("HOME", home))).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    let nowhere = Some("not/absolute");
    for (args, said) in
        [(&["cache"], "set HOLOGRAM_CACHE"), (&["models"], "HF_HOME: it is not set, and there is no home")]
    {
        let message = call(nowhere, args);
        assert!(message.contains(said), "{message}");
        // Without HOME the system's list of users says it, for both.
        assert!(cfg!(not(unix)) || !call(None, args).contains("set"), "{}", call(None, args));
    }
}
