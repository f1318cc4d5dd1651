//! Tokenizers against tables of the reference libraries, and on vocabularies that test one feature each.

use hologram_llm::gguf::{FileBytes, GgufFile};
use hologram_llm::tokenizer::{TokenDecoder, Tokenizer};
use memmap2::MmapMut;
use serde_json::Value;
use std::path::PathBuf;

fn load(name: &str) -> (Tokenizer, Value) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let file = GgufFile::open(path.with_extension("gguf")).unwrap();
    let table = std::fs::read_to_string(path.with_extension("json")).unwrap();
    (Tokenizer::from_gguf(&file).unwrap(), serde_json::from_str(&table).unwrap())
}

fn ids(case: &Value) -> Vec<u32> {
    case["ids"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// The text of tokens decoded one by one.
fn stream(tokenizer: &Tokenizer, ids: &[u32]) -> String {
    let mut decoder = TokenDecoder::with_control();
    let mut text: String = ids.iter().map(|&id| decoder.push(tokenizer, id).to_string()).collect();
    text.push_str(decoder.finish());
    text
}

#[test]
fn the_tables_of_the_reference_libraries() {
    for name in ["tok-spm", "tok-bpe"] {
        let (tokenizer, table) = load(name);
        assert_eq!(tokenizer.vocab_len() as u64, table["vocab"].as_u64().unwrap());
        assert_eq!(tokenizer.bos(), table["bos"].as_u64().map(|v| v as u32));
        assert_eq!(tokenizer.eos(), table["eos"].as_u64().map(|v| v as u32));
        assert!(tokenizer.adds_bos() && tokenizer.is_end(tokenizer.eos().unwrap()) && tokenizer.notes().is_empty());
        let (cases, special) = (table["cases"].as_array().unwrap(), table["special"].as_array().unwrap());
        assert!(cases.len() > 30);
        for (case, parse) in cases.iter().map(|c| (c, false)).chain(special.iter().map(|c| (c, true))) {
            let (text, want) = (case["text"].as_str().unwrap(), ids(case));
            assert_eq!(tokenizer.encode_with(text, false, parse).unwrap(), want, "{name}: {text:?}");
            assert_eq!(tokenizer.decode(&want, true), case["decoded"].as_str().unwrap(), "{name}: {text:?}");
            let space = if name == "tok-spm" && !text.is_empty() { " " } else { "" };
            assert_eq!(stream(&tokenizer, &want), format!("{space}{}", case["decoded"].as_str().unwrap()));
            let begun = tokenizer.encode_with(text, true, parse).unwrap();
            assert_eq!(begun.first(), tokenizer.bos().as_ref());
            assert_eq!(begun.len(), want.len() + usize::from(want.first().copied() != tokenizer.bos()));
        }
    }
}

/// The tokenizers of Hugging Face folders agree with the Python library.
#[test]
fn folders_give_what_the_library_gives() {
    for (name, bos, eos) in [("hf-bpe", None, 602), ("hf-spm", Some(1), 2), ("hf-unigram", None, 1)] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let tokenizer = Tokenizer::from_folder(&path).unwrap();
        let table: Value =
            serde_json::from_str(&std::fs::read_to_string(path.with_extension("json")).unwrap()).unwrap();
        assert_eq!(tokenizer.vocab_len() as u64, table["vocab"].as_u64().unwrap());
        assert_eq!((tokenizer.bos(), tokenizer.eos()), (bos, Some(eos)), "{name}");
        assert!(tokenizer.is_end(eos) && tokenizer.adds_bos() == bos.is_some());
        let (cases, special) = (table["cases"].as_array().unwrap(), table["special"].as_array().unwrap());
        assert!(cases.len() > 60 && !special.is_empty());
        for (case, parse) in cases.iter().map(|c| (c, false)).chain(special.iter().map(|c| (c, true))) {
            let (text, want) = (case["text"].as_str().unwrap(), ids(case));
            assert_eq!(tokenizer.encode_with(text, false, parse).unwrap(), want, "{name}: {text:?}");
            let mut begun: Vec<u32> =
                case["begun"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect();
            if parse && begun.starts_with(&[1, 1]) {
                begun.remove(0); // a text that begins with BOS gets no second one
            }
            assert_eq!(tokenizer.encode_with(text, true, parse).unwrap(), begun, "{name}: {text:?}");
            // The library separates spelled-out added tokens by spaces if there is no decoder, and drops unknown text.
            let decoded = case["decoded"].as_str().unwrap();
            assert_eq!(tokenizer.decode(&want, true), decoded, "{name}: {text:?}");
        }
    }
}

/// Damaged and unusable folders give a one-sentence error.
#[test]
fn folders_that_cannot_be_used() {
    let fixture = |name: &str| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    let good = std::fs::read_to_string(fixture("hf-bpe/tokenizer.json")).unwrap();
    let spm = std::fs::read_to_string(fixture("hf-spm/tokenizer.json")).unwrap();
    let load = |json: &str, settings: &str| {
        let settings: Value = serde_json::from_str(settings).unwrap();
        let path = PathBuf::from("model/tokenizer.json");
        Tokenizer::from_json(&path, json.as_bytes(), settings.as_object().unwrap()).map_err(|e| e.to_string())
    };
    let bare = |model: &str| {
        format!(
            "{{\"model\":{{\"type\":\"BPE\",{model}}},\"decoder\":{{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":true,\"trim_offsets\":true}}}}"
        )
    };
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to)
    };
    let byte_level = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false}";
    let swell = "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaa\"}";
    let cases = [
        (good[..good.len() / 2].to_string(), "{}", "model/tokenizer.json: not a valid tokenizer: EOF while parsing"),
        ("[]".into(), "{}", "not a valid tokenizer: the file is not a JSON object"),
        ("{}".into(), "{}", "a tokenizer with decoder none is not supported"),
        (
            spm.replace(
                "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}",
                "{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}}",
            ),
            "{}",
            "the post_processor drops the text",
        ),
        (changed("\"type\":\"BPE\"", "\"type\":\"Klingon\""), "{}", "not a valid tokenizer: "),
        (
            changed("\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"CTC\""),
            "{}",
            "a tokenizer with decoder CTC",
        ),
        (changed(":599}", ":4000000000}"), "{}", "the vocabulary has 4000000001 tokens"),
        // The library panics on these.
        (
            bare("\"vocab\":{\"a\":0,\"b\":5},\"merges\":[\"a b\"]"),
            "{}",
            "not a valid tokenizer: its parts contradict each other (merging \"a\" and \"b\" does not give a token)",
        ),
        (
            bare("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"],\"continuing_subword_prefix\":\"##\""),
            "{}",
            "its parts contradict each other (merging \"a\" and \"b\" does not give a token)",
        ),
        (spm.replace("\"ids\":[1]", "\"ids\":[99999]"), "{}", "a text gets token 99999, but the vocabulary has only"),
        (
            spm.replace("\"SpecialToken\":{\"id\":\"<s>\"", "\"SpecialToken\":{\"id\":\"<zz>\""),
            "{}",
            "its parts contradict each other (the post_processor uses \"<zz>\", which it does not define)",
        ),
        (
            spm.replace("\"Sequence\":{\"id\":\"A\"", "\"Sequence\":{\"id\":\"B\""),
            "{}",
            "its parts contradict each other (the post_processor uses \"B\", which it does not define)",
        ),
        (
            changed(
                "\"normalizer\":{\"type\":\"NFC\"}",
                &format!("\"normalizer\":{{\"type\":\"Sequence\",\"normalizers\":[{}]}}", [swell; 9].join(",")),
            ),
            "{}",
            "the normalizer and the pre-tokenizer can make a text 20155392 times as long",
        ),
        (
            changed(
                "\"type\":\"ByteLevel\",\"add_prefix_space\":false",
                &format!("\"type\":\"Sequence\",\"pretokenizers\":[{}],\"x\":0", [byte_level; 14].join(",")),
            ),
            "{}",
            "the normalizer and the pre-tokenizer can make a text 16384 times as long",
        ),
        (spm.replace("\"content\":\" \"}", "\"content\":\"e\"}"), "{}", "a tokenizer with decoder {"),
        (good.clone(), "{\"eos_token\": \"<eos>\"}", "the eos_token \"<eos>\" is not in the vocabulary"),
        (good.clone(), "{\"add_bos_token\": true}", "add_bos_token is true, but the settings do not define that token"),
    ];
    for (json, settings, want) in cases {
        let error = load(&json, settings).expect_err(want);
        assert!(error.contains(want) && error.lines().count() == 1, "{error}\n  should say: {want}");
    }
    load(
        &bare("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"#version: 0.2\",\"a b\"],\"unk_token\":\"a\""),
        "{}",
    )
    .unwrap();
    let error = Tokenizer::from_folder(fixture("blocks")).unwrap_err().to_string();
    assert!(error.contains("the folder has no tokenizer.json"), "{error}");
    // Any change of a byte gives a tokenizer or an error.
    let mut state = 11u64;
    for name in ["hf-bpe", "hf-spm", "hf-unigram"] {
        let good = std::fs::read(fixture(name).join("tokenizer.json")).unwrap();
        for _ in 0..150 {
            let mut bytes = good.clone();
            for _ in 0..2 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let at = (state >> 33) as usize % bytes.len();
                // Mostly in the settings at the front, which determine the meaning of the rest.
                let at = if state & 1 == 0 { at % 2000 } else { at };
                bytes[at] = b"0123456789\"{}[],:truefalsnx\\ "[(state >> 20) as usize % 29];
            }
            if let Ok(tokenizer) = Tokenizer::from_json(&fixture(name), &bytes, &Default::default())
                && let Ok(ids) = tokenizer.encode_with("  Héllo 123 <s><|im_end|>\n😀 the end", true, true)
            {
                tokenizer.decode(&ids, true);
            }
        }
    }
}

#[test]
fn control_tokens_and_lookups() {
    let (bpe, _) = load("tok-bpe");
    let eot = bpe.token_id("<|eot_id|>").unwrap();
    assert_eq!((bpe.eot(), bpe.token_text(eot).as_deref()), (Some(eot), Some("<|eot_id|>")));
    assert!(bpe.is_end(bpe.token_id("<|end_of_text|>").unwrap()) && !bpe.is_end(0));
    assert!(!bpe.encode("<|eot_id|>", false).unwrap().contains(&eot));
    assert_eq!(bpe.encode_with("<|eot_id|>", false, true).unwrap(), [eot]);
    let hello = bpe.encode_with("Hello<|eot_id|>", false, true).unwrap();
    assert_eq!((bpe.decode(&hello, false).as_str(), bpe.decode(&hello, true).as_str()), ("Hello", "Hello<|eot_id|>"));
    assert_eq!((bpe.token_text(907), bpe.decode(&[907], false).as_str()), (None, "\u{fffd}"));
    // Text after a control token is encoded like a new text: SentencePiece puts a space in front of it.
    let (spm, _) = load("tok-spm");
    let twice = spm.encode_with("a</s>a", false, true).unwrap();
    assert_eq!(twice, [spm.encode("a", false).unwrap(), vec![2], spm.encode("a", false).unwrap()].concat());
}

/// Incomplete characters are never shown, and invalid bytes turn into U+FFFD.
#[test]
fn streaming_holds_back_half_characters() {
    let (spm, _) = load("tok-spm");
    // The first ids are the unknown, BOS and EOS tokens.
    let byte = |b: u8| 3 + u32::from(b);
    let cases: [(&[u8], &[&str], &str); 6] = [
        ("é".as_bytes(), &["", "é"], ""),
        ("😀".as_bytes(), &["", "", "", "😀"], ""),
        (&[0xe2, 0x82], &["", ""], "\u{fffd}"),
        (&[0xe2, b'a'], &["", "\u{fffd}a"], ""),
        (&[0xff, 0x80], &["\u{fffd}", "\u{fffd}"], ""),
        (&[0xf0, 0x9f, 0xf0, 0x9f, 0x98, 0x80], &["", "", "\u{fffd}", "", "", "😀"], ""),
    ];
    for (bytes, want, end) in cases {
        let mut decoder = TokenDecoder::new();
        let got: Vec<String> = bytes.iter().map(|&b| decoder.push(&spm, byte(b)).to_string()).collect();
        assert_eq!((got, decoder.finish()), (want.iter().map(|s| s.to_string()).collect(), end), "{bytes:x?}");
    }
}

/// Long words take n log n steps; quadratic merging would take forever on this word.
#[test]
fn long_words() {
    for name in ["tok-spm", "tok-bpe"] {
        let (tokenizer, _) = load(name);
        for unit in ["a", "th", "the ", "😀", "1", " "] {
            let text = unit.repeat(200_000 / unit.len());
            let ids = tokenizer.encode(&text, false).unwrap();
            assert_eq!(tokenizer.decode(&ids, false), text, "{name}: {unit:?}");
        }
    }
}

/// A GGUF file without tensors.
#[derive(Default)]
struct Vocabulary {
    keys: u64,
    bytes: Vec<u8>,
}

impl Vocabulary {
    fn key(mut self, name: &str, ty: u32, value: &[u8]) -> Self {
        let name = if name.contains('.') { name.to_string() } else { format!("tokenizer.ggml.{name}") };
        self.bytes.extend([&(name.len() as u64).to_le_bytes(), name.as_bytes(), &ty.to_le_bytes(), value].concat());
        self.keys += 1;
        self
    }
    fn str(self, name: &str, value: &str) -> Self {
        self.key(name, 8, &[&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat())
    }
    fn id(self, name: &str, value: u32) -> Self {
        self.key(name, 4, &value.to_le_bytes())
    }
    fn array<T>(self, name: &str, ty: u32, values: &[T], bytes: impl Fn(&T) -> Vec<u8>) -> Self {
        let head = [ty.to_le_bytes().to_vec(), (values.len() as u64).to_le_bytes().to_vec()].concat();
        let body: Vec<u8> = values.iter().flat_map(bytes).collect();
        self.key(name, 9, &[head, body].concat())
    }
    fn strings(self, name: &str, values: &[&str]) -> Self {
        self.array(name, 8, values, |s| [&(s.len() as u64).to_le_bytes(), s.as_bytes()].concat())
    }
    fn types(self, values: &[i32]) -> Self {
        self.array("token_type", 5, values, |v| v.to_le_bytes().to_vec())
    }
    fn scores(self, values: &[f32]) -> Self {
        self.array("scores", 6, values, |v| v.to_le_bytes().to_vec())
    }
    fn load(&self) -> Result<Tokenizer, String> {
        let head = [&b"GGUF"[..], &3u32.to_le_bytes(), &0u64.to_le_bytes(), &self.keys.to_le_bytes()].concat();
        let bytes = [head, self.bytes.clone()].concat();
        let mut map = MmapMut::map_anon(bytes.len()).unwrap();
        map.copy_from_slice(&bytes);
        let file = GgufFile::from_bytes("test.gguf", FileBytes::Map(map.make_read_only().unwrap()))
            .map_err(|e| e.to_string())?;
        Tokenizer::from_gguf(&file).map_err(|e| e.to_string())
    }
}

/// GPT-2's printable characters for all bytes, as a vocabulary without merges: each byte is a token.
fn letters() -> Vec<String> {
    let printable = |b: &u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let (mut keep, mut extra): (Vec<u32>, Vec<u32>) = ((0..256).filter(printable).collect(), Vec::new());
    extra.extend(0x100..0x100 + 256 - keep.len() as u32);
    keep.append(&mut extra);
    keep.iter().map(|&c| char::from_u32(c).unwrap().to_string()).collect()
}

/// How each pre-tokenizer splits a text, shown by a vocabulary in which every word of up to four letters is one token.
#[test]
fn pre_tokenizers_cut_as_published() {
    let alphabet = ["a", "s", "S", "'", "1", ".", "Ġ", "Ċ"];
    let mut tokens = letters();
    let mut words = vec![vec![String::new()]];
    for n in 1..=4 {
        let longer = |word: &String| alphabet.map(|letter| format!("{word}{letter}"));
        words.push(words[n - 1].iter().flat_map(longer).collect());
    }
    tokens.extend(words[2..].concat());
    let mut merges = Vec::new();
    for (a, b) in [(1, 1), (1, 2), (2, 1), (1, 3), (2, 2), (3, 1)] {
        merges.extend(words[a].iter().flat_map(|x| words[b].iter().map(move |y| format!("{x} {y}"))));
    }
    let tokens: Vec<&str> = tokens.iter().map(|s| &**s).collect();
    let merges: Vec<&str> = merges.iter().map(|s| &**s).collect();
    let cases = [
        // text, llama-bpe, gpt-2, qwen2, smollm
        ("aa aa", "aa| aa", "aa| aa", "aa| aa", "aa| aa"),
        ("a   a", "a|  | a", "a|  | a", "a|  | a", "a|  | a"),
        ("a  ", "a|  ", "a|  ", "a|  ", "a|  "),
        ("a\n\na", "a|\n\n|a", "a|\n|\n|a", "a|\n\n|a", "a|\n|\n|a"),
        (" \n a", " \n| a", " \n| a", " \n| a", " \n| a"),
        ("1111", "111|1", "1111", "1|1|1|1", "1|1|1|1"),
        ("a 11", "a| |11", "a| 11", "a| |1|1", "a| |1|1"),
        (".a", ".a", ".|a", ".a", ".|a"),
        ("..\n", "..\n", "..|\n", "..\n", "..|\n"),
        ("a's", "a|'s", "a|'s", "a|'s", "a|'s"),
        ("a'S", "a|'S", "a|'|S", "a|'S", "a|'|S"),
        (" 's", " '|s", " '|s", " '|s", " '|s"),
        ("a  1", "a| | |1", "a| | 1", "a| | |1", "a|  |1"),
    ];
    for (i, pre) in ["llama-bpe", "gpt-2", "qwen2", "smollm"].into_iter().enumerate() {
        let vocabulary = Vocabulary::default()
            .str("model", "gpt2")
            .str("pre", pre)
            .strings("tokens", &tokens)
            .strings("merges", &merges);
        let tokenizer = vocabulary.load().unwrap();
        assert!(!tokenizer.adds_bos());
        for (text, a, b, c, d) in cases {
            let got: Vec<String> =
                tokenizer.encode(text, true).unwrap().iter().map(|&id| tokenizer.decode(&[id], false)).collect();
            assert_eq!(got.join("|"), [a, b, c, d][i], "{pre}: {text:?}");
        }
    }
}

#[test]
fn small_vocabularies() {
    // Merges go by rank, then from the left. A merge whose result is not a token falls back to bytes.
    let mut tokens = letters();
    tokens.extend(["ab", "bc", "aa", "<x>", "<|begin_of_text|>"].map(String::from));
    let tokens: Vec<&str> = tokens.iter().map(|s| &**s).collect();
    let mut types = vec![1; 261];
    (types[259], types[260]) = (4, 3);
    let vocabulary = Vocabulary::default()
        .str("model", "gpt2")
        .strings("tokens", &tokens)
        .types(&types)
        .strings("merges", &["b c", "a b", "a a", "d e"])
        .id("bos_token_id", 260);
    let tokenizer = vocabulary.load().unwrap();
    let cut = |text: &str| -> Vec<String> {
        tokenizer
            .encode(text, false)
            .unwrap()
            .iter()
            .map(|&id| tokenizer.token_text(id).unwrap().into_owned())
            .collect()
    };
    assert_eq!(cut("abc"), ["a", "bc"]);
    assert_eq!(cut("aaaaa"), ["aa", "aa", "a"]);
    assert_eq!(cut("aab"), ["a", "ab"]);
    assert_eq!(cut("de"), ["d", "e"]);
    assert_eq!(cut("a<x>b"), ["a", "<x>", "b"]);
    assert!(tokenizer.notes()[0].contains("using the pre-tokenizer llama-bpe") && tokenizer.adds_bos());

    // Without byte tokens a character becomes the unknown token. Unused pieces take part in merging and are split
    // again.
    let spm = |types: &[i32]| {
        Vocabulary::default()
            .str("model", "llama")
            .strings("tokens", &["<unk>", "<s>", "</s>", "\u{2581}", "a", "b", "ab", "aba", "\u{2581}a", "<u>"])
            .scores(&[0.0, 0.0, 0.0, -9.0, -9.0, -9.0, -1.0, -2.0, -3.0, 0.0])
            .types(types)
            .key("add_space_prefix", 7, &[0])
    };
    let tokenizer = spm(&[2, 3, 3, 1, 1, 1, 1, 1, 1, 4]).load().unwrap();
    assert_eq!(tokenizer.encode("abaxab a<u>", true).unwrap(), [1, 7, 0, 6, 8, 9]);
    assert_eq!(tokenizer.decode(&[1, 8, 0, 2], false), " a \u{2047} ");
    let tokenizer = spm(&[2, 3, 3, 1, 1, 1, 5, 1, 1, 4]).load().unwrap();
    assert_eq!(tokenizer.encode("abaab", false).unwrap(), [7, 4, 5]);

    // Gemma 4's: text in tokens, newlines apart from the rest and whole if they are a token, bytes for other
    // characters.
    let tokens = ["<unk>", "<bos>", "a", "b", "\u{2581}", "\u{2581}a", "ab", "\n", "\n\n", "<0xC3>", "<0xA9>"];
    let gemma4 = Vocabulary::default()
        .str("model", "gemma4")
        .strings("tokens", &tokens)
        .types(&[2, 3, 1, 1, 1, 1, 1, 1, 1, 6, 6])
        .strings("merges", &["\u{2581} a", "a b", "b \n"])
        .id("bos_token_id", 1)
        .load()
        .unwrap();
    let text = " ab\n\n\u{e9} \n\n\nab";
    let ids = gemma4.encode(text, true).unwrap();
    assert_eq!(ids, [1, 5, 3, 8, 9, 10, 4, 7, 7, 7, 6]);
    assert_eq!(gemma4.decode(&ids, false), text);

    let base = || Vocabulary::default().str("model", "gpt2").strings("tokens", &["a", "b"]);
    let llama = || Vocabulary::default().str("model", "llama").strings("tokens", &["a", "b"]);
    let cases = [
        (
            Vocabulary::default(),
            "test.gguf: the file has no tokenizer (missing key tokenizer.ggml.model); bench and logits",
        ),
        (Vocabulary::default().str("model", "t5").strings("tokens", &["a"]), "no token for unknown words"),
        (
            Vocabulary::default().str("model", "rwkv").strings("tokens", &["a"]),
            "the tokenizer model rwkv is not supported",
        ),
        (
            Vocabulary::default().str("model", "t5").strings("tokens", &["<unk>", "a"]).scores(&[0.0]),
            "1 scores for 2 tokens",
        ),
        (
            Vocabulary::default().str("model", "bert").strings("tokens", &["[UNK]", "a", "a"]),
            "the token \"a\" occurs twice",
        ),
        (Vocabulary::default().str("model", "gpt2"), "missing key tokenizer.ggml.tokens"),
        (Vocabulary::default().str("model", "gpt2").strings("tokens", &[]), "the vocabulary has 0 tokens"),
        (base(), "missing key tokenizer.ggml.merges"),
        (base().strings("merges", &["a b", "ab"]), "merge 1 is \"ab\", but must be two tokens separated by a space"),
        (base().strings("merges", &["a "]), "merge 0 is \"a \", but must be two tokens"),
        (base().str("pre", "klingon"), "unknown pre-tokenizer klingon; supported: llama-bpe"),
        (base().id("bos_token_id", 2), "key tokenizer.ggml.bos_token_id is 2, but must be below 2"),
        (base().strings("merges", &[]).key("add_bos_token", 7, &[1]), "add_bos_token is true, but there is no"),
        (base().types(&[1]), "has 1 elements, but there are 2 tokens"),
        (llama(), "missing key tokenizer.ggml.scores"),
        (llama().scores(&[0.0]), "1 scores for 2 tokens"),
        (
            Vocabulary::default().str("model", "llama").id("tokens", 1),
            "is of type u32, but must be an array of strings",
        ),
    ];
    for (vocabulary, want) in cases {
        let error = vocabulary.load().expect_err(want);
        assert!(error.contains(want), "{error}\n  should say: {want}");
    }
    let lossy = base().strings("merges", &[]).load().unwrap();
    assert!(lossy.notes()[1].contains("254 byte values have no token"));
    assert_eq!(lossy.encode("abc", false).unwrap(), [0, 1]);
}

/// Damaged vocabularies load or give an error; those that load encode and decode any text.
#[test]
fn damaged_vocabularies_do_not_panic() {
    let mut state = 7u64;
    let mut random = |n: usize| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize % n
    };
    for name in ["tok-spm.gguf", "tok-bpe.gguf"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
        let good = std::fs::read(path).unwrap();
        let mut loaded = 0;
        for _ in 0..1500 {
            let mut map = MmapMut::map_anon(good.len()).unwrap();
            map.copy_from_slice(&good);
            for _ in 0..1 + random(4) {
                map[random(good.len())] = random(256) as u8;
            }
            let Ok(file) = GgufFile::from_bytes("test.gguf", FileBytes::Map(map.make_read_only().unwrap())) else {
                continue;
            };
            let Ok(tokenizer) = Tokenizer::from_gguf(&file) else { continue };
            loaded += 1;
            let ids = tokenizer.encode_with("  Héllo 123 <s><|eot_id|>\n😀 the end", true, true).unwrap();
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_len()));
            tokenizer.decode(&ids, true);
        }
        assert!(loaded > 100, "{name}: {loaded} loaded");
    }
}
