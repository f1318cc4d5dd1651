//! With `deterministic` the bits of a seeded request are the same alone and beside any others, on an NVIDIA GPU.

use std::sync::Arc;
use std::time::Instant;

use hologram_backends::DType;
use hologram_core::Executor;
use hologram_llm::{Engine, EngineOptions, Event, Model, Request, Shape, Speculation};

#[path = "common/alone.rs"]
mod alone;

use alone::{Case, FIXTURES, LOADS, dense};

/// Requests that run at once: more than a plan has tokens.
const REQUESTS: usize = 60;

#[test]
#[ignore = "needs an NVIDIA GPU, where tools/gpu/check.py runs it"]
fn requests_give_the_same_bits_beside_others() {
    let executor = Executor::open("cuda", None).unwrap();
    let fixtures = FIXTURES.into_iter().map(|name| Case::fixture(&executor, name));
    let mut all = Vec::new();
    for case in dense(&executor, 8).into_iter().chain(fixtures) {
        for load in LOADS {
            let started = std::time::Instant::now();
            let (differing, stats) = case.differing(REQUESTS, load, true);
            println!(
                "{}, {} at once: {} differ, {} preemptions, {:.1?}",
                case.name,
                load.sequences,
                differing.len(),
                stats.preemptions,
                started.elapsed()
            );
            assert!(stats.step_tokens > 3 * stats.steps, "requests share steps: {stats:?}");
            all.extend(differing);
        }
    }
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Tokens that `users` generate in a second, each a text of 96 tokens after a prompt of 220.
fn speed(engine: &Engine, users: u32) -> f64 {
    let vocab = engine.model().config().vocab as u32;
    let one = |user: u32| {
        let token = |i: u32| (i + 1).wrapping_mul(0x85eb_ca6b) ^ user.wrapping_mul(0x9e37_79b1);
        let mut request = Request::new((0..220).map(|i| token(i) % vocab).collect::<Vec<u32>>());
        (request.max_tokens, request.ignore_end) = (Some(96), true);
        let mut events = engine.submit(request).unwrap();
        let mut tokens = 0;
        while let Some(event) = events.next_blocking() {
            match event {
                Event::Token { ids, .. } => tokens += ids.len(),
                Event::Failed(failure) => panic!("{failure}"),
                _ => {}
            }
        }
        tokens
    };
    let started = Instant::now();
    let tokens: usize = std::thread::scope(|scope| {
        let users: Vec<_> = (0..users).map(|user| scope.spawn(move || one(user))).collect();
        users.into_iter().map(|user| user.join().unwrap()).sum()
    });
    tokens as f64 / started.elapsed().as_secs_f64()
}

#[test]
#[ignore = "needs an NVIDIA GPU and 20 GB of its memory"]
fn nightly_it_costs_less_than_half_the_speed() {
    let executor = Executor::open("cuda", None).unwrap();
    let model = Arc::new(Model::random(Shape::find("llama-8b").unwrap(), DType::BF16, &executor).unwrap());
    for users in [1, 8, 32] {
        let [without, with] = [false, true].map(|deterministic| {
            let mut options = EngineOptions::for_model(&model);
            (options.max_sequences, options.context, options.deterministic) = (32, 512, deterministic);
            (options.speculation, options.prefix_cache) = (Speculation::Off, false);
            let engine = Engine::new(model.clone(), options).unwrap();
            // The first time compiles.
            speed(&engine, users);
            speed(&engine, users)
        });
        println!("{users} users: {without:.0} tokens/s, deterministic {with:.0}, {:.2} of it", with / without);
        assert!(with > without / 2.0);
    }
}
