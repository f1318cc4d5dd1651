//! Conversations that are saved and resumed: nothing is computed again, and the text is the same.

use std::sync::Arc;

use crate::common::discrete::Discrete;
use crate::common::scratch::Scratch;
use crate::common::snapshots::{CACHES, MODELS, check, fixture, prompt};
use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{Engine, EngineOptions, Event, Logits, Model, Request, SessionOptions, Snapshot, Speculation};

#[test]
fn sequences_leave_a_session_and_come_back() {
    let folder = Scratch::new("snapshots");
    assert_eq!(check(&Executor::open("cpu", Some(2)).unwrap(), &folder.0, &MODELS), 26);
    assert_eq!(check(&Executor::from_backend(Arc::new(Discrete::new(1, None))), &folder.0, &MODELS), 26);
}

fn engine(name: &str, kv: Option<DType>) -> Option<Engine> {
    let model = Arc::new(Model::load_on(fixture(name), &Executor::open("cpu", Some(1)).unwrap()).unwrap());
    let mut options = EngineOptions::for_model(&model);
    (options.context, options.max_sequences, options.kv) = (256, 2, kv);
    options.speculation = Speculation::Off;
    Engine::new(model, options).ok()
}

/// The tokens after a prompt, and how many of its own the cache had.
fn run(engine: &Engine, prompt: &[u32], tenant: Option<&str>) -> (Vec<u32>, usize) {
    let mut request = Request::new(prompt);
    (request.max_tokens, request.ignore_end) = (Some(40), true);
    request.sampling = SamplerConfig { seed: 5, ..SamplerConfig::default() };
    request.tenant = tenant.map(Into::into);
    let mut events = engine.submit(request).unwrap();
    let (mut tokens, mut cached) = (Vec::new(), 0);
    while let Some(event) = events.next_blocking() {
        match event {
            Event::Started { cached_tokens, .. } => cached = cached_tokens,
            Event::Token { ids, .. } => tokens.extend(ids),
            Event::Failed(failure) => panic!("{failure}"),
            _ => {}
        }
    }
    (tokens, cached)
}

#[test]
fn conversations_leave_an_engine_and_come_back() {
    let folder = Scratch::new("snapshots-engine");
    let mut pairs = 0;
    for name in MODELS {
        for kv in CACHES {
            let Some(first) = engine(name, Some(kv)) else { continue };
            pairs += 1;
            let what = format!("{name}, {}", kv.name());
            let said = prompt(1, 75);
            let talk = [&said[..], &run(&first, &said, Some("a")).0].concat();
            assert_eq!(first.last_tokens(0, Some("a")).unwrap().as_ref(), Some(&talk), "{what}");
            assert_eq!(first.last_tokens(0, None).unwrap(), None, "of another tenant");
            let path = folder.0.join("talk");
            let snapshot = first.snapshot(&talk, Some("a")).unwrap();
            // 114 tokens are computed, in whole blocks.
            assert_eq!((snapshot.computed(), snapshot.tokens()), (96, &talk[..]), "{what}");
            snapshot.write(&path).unwrap();
            let next = [&talk[..], &prompt(2, 11)].concat();
            let (want, cached) = run(&first, &next, Some("a"));
            // An engine that computed the text itself also reuses part of a block, unless layers are recurrent.
            let recurs = ["lfm2", "qwen3-5", "qwen3-next", "granite-4"].contains(&name);
            assert_eq!(cached, if recurs { 96 } else { 114 }, "{what}");
            let second = engine(name, Some(kv)).unwrap();
            run(&second, &prompt(7, 40), None);
            assert_eq!(second.restore(Snapshot::read(&path).unwrap(), Some("a")).unwrap(), 96);
            assert_eq!(run(&second, &next, None).1, 0, "another tenant finds nothing");
            let (got, cached) = run(&second, &next, Some("a"));
            assert!(got == want && cached == 96, "{what}: {cached} tokens cached");
            assert_eq!(second.stats().blocks_used, 0);
            // A second time, and after it was forgotten.
            assert_eq!(second.restore(Snapshot::read(&path).unwrap(), Some("a")).unwrap(), 96);
            assert_eq!((second.forget(&talk, Some("a")).unwrap(), run(&second, &next, Some("a")).1), (96, 0), "{what}");
        }
    }
    assert_eq!(pairs, 26);
}

#[test]
fn foreign_and_damaged_files_are_refused() {
    let folder = Scratch::new("snapshots-damaged");
    let path = folder.0.join("talk");
    let executor = Executor::open("cpu", Some(1)).unwrap();
    let load = |name: &str| Model::load_on(fixture(name), &executor).unwrap();
    let options = |kv| SessionOptions { context: 128, kv: Some(kv), ..SessionOptions::default() };
    let (llama, kv) = (load("llama-tiny.gguf"), DType::F16);
    let mut session = llama.session(options(kv)).unwrap();
    session.feed(0, &prompt(1, 70), Logits::None).unwrap();
    session.snapshot(0).unwrap().write(&path).unwrap();
    let good = Snapshot::read(&path).unwrap();
    let refused = |model: &Model, options, part: &str| {
        let message = model.session(options).unwrap().restore(0, &good).unwrap_err().to_string();
        assert!(message.contains(part) && message.contains("talk"), "{message}");
    };
    refused(&load("llama3-tiny.gguf"), options(kv), "it was saved with another model");
    refused(&llama, options(DType::F32), "it was saved with a KV cache of f16, but this one is of f32");
    let short = SessionOptions { context: 64, ..options(kv) };
    let message = llama.session(short).unwrap().restore(0, &good).unwrap_err().to_string();
    assert_eq!(message, "the context of 64 tokens is full");
    // The same file elsewhere is the same model.
    let copy = folder.0.join("copy.gguf");
    std::fs::copy(fixture("llama-tiny.gguf"), &copy).unwrap();
    let mut moved = Model::load_on(copy, &executor).unwrap().session(options(kv)).unwrap();
    assert_eq!(moved.restore(0, &good).unwrap(), 70);

    // Nothing but a saved conversation is replaced: the name may be a mistake.
    let other = folder.0.join("notes.txt");
    std::fs::write(&other, "kept").unwrap();
    let message = good.write(&other).unwrap_err().to_string();
    assert!(message.contains("it is no saved conversation, so it is not replaced"), "{message}");
    assert!(std::fs::read(&other).unwrap() == b"kept" && good.write(&folder.0).is_err());
    std::fs::remove_file(&other).unwrap();
    good.write(&path).unwrap();

    let bytes = std::fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        Snapshot::read(&path).map_err(|e| e.to_string())
    };
    assert_eq!(read(&bytes), Ok(good.clone()));
    for at in (0..bytes.len()).step_by(97).chain(0..64) {
        let mut other = bytes.clone();
        other[at] ^= 4;
        let message = read(&other).unwrap_err();
        let expected = match at {
            0..16 => "it is no saved conversation",
            16..20 => "its version is unknown",
            _ => "it is damaged or incomplete",
        };
        assert!(message.contains(expected), "{at}: {message}");
    }
    for len in (0..bytes.len()).step_by(331) {
        assert!(read(&bytes[..len]).is_err(), "{len}");
    }
    assert!(read(&[&bytes[..], &[0]].concat()).is_err());
    assert!(Snapshot::read(&folder.0).unwrap_err().to_string().contains("not a regular file"));
    // Nothing is left of files that were replaced.
    assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
}
