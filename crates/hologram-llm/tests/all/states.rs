//! Models with a state beside the cache: sequences are cut back, mixed and started from saved states, and steps of the
//! engine compute what each request alone does.

use std::path::PathBuf;
use std::sync::Arc;

use hologram_core::Executor;
use hologram_llm::sampling::SamplerConfig;
use hologram_llm::{
    BLOCK_SIZE, Engine, EngineOptions, Event, Input, Logits, Model, Request, Session, SessionOptions, Speculation,
};

const MODELS: [&str; 6] = ["lfm2", "qwen3-5", "qwen3-next", "granite-4", "falcon-h1", "nemotron-3-nano"];

fn model(name: &str) -> Model {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name);
    Model::load_on(path, &Executor::open("cpu", Some(2)).unwrap()).unwrap()
}

fn session(model: &Model, batch: usize) -> Session {
    model
        .session(SessionOptions { context: 128, batch: Some(batch), sequences: 3, ..SessionOptions::default() })
        .unwrap()
}

fn prompt(seed: u32, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| 3 + ((i + 1).wrapping_mul(0x9e37_79b1).wrapping_add(seed * 977) >> 9) % 60).collect()
}

fn close(got: &[f32], want: &[f32], what: &str) {
    let off = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    assert!(got.len() == want.len() && off < 1e-4, "{what}: off by {off}");
}

#[test]
fn sequences_are_cut_back_to_any_length() {
    for name in MODELS {
        let model = model(name);
        let tokens = prompt(1, 40);
        let mut alone = session(&model, 64);
        let want = alone.feed(0, &tokens, Logits::All).unwrap().to_vec();
        let vocab = alone.vocab();
        let row = |at: usize| &want[at * vocab..(at + 1) * vocab];
        for batch in [64, 7] {
            let mut s = session(&model, batch);
            // The length to which it is cut back, and how many tokens follow: within the last step, before it, from
            // the start, after a token, and twice.
            s.feed(1, &tokens[..30], Logits::None).unwrap();
            for (len, more) in [(30, 1), (30, 1), (12, 9), (20, 3), (0, 5), (5, 30), (33, 2), (33, 1)] {
                s.truncate(1, len);
                assert_eq!(s.len(1), len);
                let got = s.feed(1, &tokens[len..len + more], Logits::All).unwrap().to_vec();
                close(
                    &got,
                    &want[len * vocab..(len + more) * vocab],
                    &format!("{name}, {len} + {more}, batch {batch}"),
                );
                assert_eq!(s.tokens(1), &tokens[..len + more]);
            }
            // What has to be computed again is not counted as kept.
            let kept = s.keep_prefix(1, &tokens[..20]);
            assert!(kept < 20 && s.len(1) == kept, "{kept}");
            s.feed(1, &tokens[kept..], Logits::None).unwrap();
            assert_eq!(s.keep_prefix(1, &prompt(2, 40)), 0);
            s.feed(1, &tokens[..8], Logits::None).unwrap();
            assert_eq!(s.keep_prefix(1, &tokens), 8);
            close(s.feed(1, &tokens[8..9], Logits::Last).unwrap(), row(8), name);
        }
    }
}

/// Pieces of several sequences in one step, some of the same sequence, in any order.
#[test]
fn pieces_of_sequences_are_mixed() {
    for name in MODELS {
        let model = model(name);
        let prompts = [prompt(1, 30), prompt(2, 30), prompt(3, 30)];
        let mut alone = session(&model, 64);
        let want: Vec<Vec<f32>> = (0..3).map(|s| alone.feed(s, &prompts[s], Logits::All).unwrap().to_vec()).collect();
        let mut mixed = session(&model, 11);
        let vocab = mixed.vocab();
        let mut done = [0; 3];
        for pieces in [&[(2, 5), (0, 1), (2, 2), (1, 9)][..], &[(1, 1), (0, 1), (2, 1)], &[(0, 20), (1, 3), (0, 2)]] {
            let mut rows = Vec::new();
            let inputs: Vec<Input<'_>> = pieces
                .iter()
                .map(|(s, n)| {
                    let from = done[*s];
                    done[*s] += n;
                    rows.extend_from_slice(&want[*s][from * vocab..(from + n) * vocab]);
                    Input { sequence: *s, tokens: &prompts[*s][from..from + n], logits: Logits::All }
                })
                .collect();
            close(mixed.feed_inputs(&inputs).unwrap(), &rows, name);
        }
    }
}

#[test]
fn prompts_with_the_same_start_reuse_saved_states() {
    let of = |seed: u32, len: usize| {
        let mut request = Request::new([prompt(7, 2 * BLOCK_SIZE + 5), prompt(seed, len)].concat());
        request.max_tokens = Some(9);
        request.sampling = SamplerConfig::GREEDY;
        request.ignore_end = true;
        request
    };
    let run = |engine: &Engine, requests: &[Request]| -> Vec<(Vec<u32>, usize)> {
        let events: Vec<_> = requests.iter().map(|r| engine.submit(r.clone()).unwrap()).collect();
        let read = |mut events: hologram_llm::Events| {
            let (mut tokens, mut cached) = (Vec::new(), 0);
            while let Some(event) = events.next_blocking() {
                match event {
                    Event::Started { cached_tokens, .. } => cached = cached_tokens,
                    Event::Token { ids, .. } => tokens.extend(ids),
                    Event::Failed(failure) => panic!("{failure:?}"),
                    _ => {}
                }
            }
            (tokens, cached)
        };
        events.into_iter().map(read).collect()
    };
    for name in MODELS {
        let model = Arc::new(model(name));
        let engine = |prefix_cache: bool| {
            let mut options = EngineOptions::for_model(&model);
            (options.context, options.prefix_cache) = (128, prefix_cache);
            assert_eq!(options.speculation, Speculation::Auto);
            Engine::new(model.clone(), options).unwrap()
        };
        let requests: Vec<Request> = [(1, 3), (1, 3), (2, 40), (3, 1)].map(|(seed, len)| of(seed, len)).to_vec();
        let plain = engine(false);
        let want: Vec<_> = requests.iter().flat_map(|r| run(&plain, std::slice::from_ref(r))).collect();
        assert!(want.iter().all(|(tokens, cached)| tokens.len() == 9 && *cached == 0));
        let reused = engine(true);
        let got: Vec<_> = requests.iter().flat_map(|r| run(&reused, std::slice::from_ref(r))).collect();
        assert_eq!(got.iter().map(|(_, cached)| *cached).collect::<Vec<_>>(), [0, 64, 64, 64]);
        // All at once, where some start from a state while others go on.
        let again = run(&reused, &requests);
        for (((tokens, _), (want, _)), (at_once, _)) in got.iter().zip(&want).zip(&again) {
            assert_eq!((tokens, at_once), (want, want), "{name}");
        }
        let mut fixed = EngineOptions::for_model(&model);
        fixed.speculation = Speculation::Fixed(3);
        let error = Engine::new(model.clone(), fixed).err().unwrap().to_string();
        assert!(error.contains("recurrent"), "{error}");
    }
}
