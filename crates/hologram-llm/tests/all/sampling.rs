//! Sampling: exact cases, frequencies, and the published vectors of the random generator.

use hologram_core::{DType, Dim, Executor, Graph};
use hologram_llm::sampling::{Sampler, SamplerConfig, philox4x32_10};

fn config(temperature: f32, top_k: usize, top_p: f32) -> SamplerConfig {
    SamplerConfig { temperature, top_k, top_p, seed: 42, ..SamplerConfig::default() }
}

/// How often each token is chosen at 20000 positions, as shares.
fn shares(config: SamplerConfig, logits: &[f32]) -> Vec<f64> {
    let mut sampler = Sampler::new(config).unwrap();
    let mut counts = vec![0.0; logits.len()];
    for position in 0..20_000 {
        counts[sampler.sample(logits, position).unwrap() as usize] += 1.0;
    }
    counts.into_iter().map(|n: f64| n / 20_000.0).collect()
}

#[test]
fn shares_follow_the_options() {
    // Logits of the probabilities 1/2, 1/4, 1/8, 1/8, out of order.
    let logits = [0.125f32, 0.5, 0.125, 0.25].map(f32::ln);
    let cases = [
        (config(1.0, 0, 1.0), [0.125, 0.5, 0.125, 0.25]),
        (config(1.0, 4, 1.0), [0.125, 0.5, 0.125, 0.25]),
        (config(1.0, 1000, 1.0), [0.125, 0.5, 0.125, 0.25]),
        (config(1.0, 2, 1.0), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]),
        // Of equal logits the lower id ranks first.
        (config(1.0, 3, 1.0), [1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0]),
        (config(1.0, 1, 1.0), [0.0, 1.0, 0.0, 0.0]),
        (config(1.0, 0, 0.74), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]),
        (config(1.0, 0, 0.8), [1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0]),
        (config(1.0, 0, 1e-6), [0.0, 1.0, 0.0, 0.0]),
        // top-p applies to the tokens kept by top-k: the best alone has 2/3 of the two best.
        (config(1.0, 2, 0.66), [0.0, 1.0, 0.0, 0.0]),
        // Temperature comes last and does not change the tokens kept by top-p; squares at temperature 1/2.
        (config(0.5, 0, 1.0), [1.0 / 22.0, 16.0 / 22.0, 1.0 / 22.0, 4.0 / 22.0]),
        (config(0.5, 0, 0.8), [1.0 / 21.0, 16.0 / 21.0, 0.0, 4.0 / 21.0]),
        (config(1e6, 0, 0.8), [1.0 / 3.0, 1.0 / 3.0, 0.0, 1.0 / 3.0]),
        (config(1e-30, 0, 1.0), [0.0, 1.0, 0.0, 0.0]),
        (config(0.0, 0, 1.0), [0.0, 1.0, 0.0, 0.0]),
    ];
    let min_p = |min_p, config: SamplerConfig| SamplerConfig { min_p, ..config };
    let typical = |typical_p, config: SamplerConfig| SamplerConfig { typical_p, ..config };
    let more = [
        // The entropy is 1.75 bits, to which 1/4 is closest with 2, then 1/2 with 1.
        (typical(0.2, config(1.0, 0, 1.0)), [0.0, 0.0, 0.0, 1.0]),
        (typical(0.5, config(1.0, 0, 1.0)), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]),
        (typical(0.8, config(1.0, 0, 1.0)), [1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0]),
        (typical(0.999, config(1.0, 0, 1.0)), [0.125, 0.5, 0.125, 0.25]),
        // Top-p applies to what is kept.
        (typical(0.5, config(1.0, 0, 0.6)), [0.0, 1.0, 0.0, 0.0]),
        // Min-p is relative to the best of what is kept.
        (min_p(0.6, typical(0.2, config(1.0, 0, 1.0))), [0.0, 0.0, 0.0, 1.0]),
        // 1/4 is half of the best, 1/8 is not; temperature comes last.
        (min_p(0.4, config(1.0, 0, 1.0)), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]),
        (min_p(0.4, config(0.5, 0, 1.0)), [0.0, 0.8, 0.0, 0.2]),
        (min_p(0.2, config(1.0, 3, 1.0)), [1.0 / 7.0, 4.0 / 7.0, 0.0, 2.0 / 7.0]),
        (min_p(0.4, config(1.0, 0, 0.8)), [0.0, 2.0 / 3.0, 0.0, 1.0 / 3.0]),
        (min_p(1.0, config(1.0, 0, 1.0)), [0.0, 1.0, 0.0, 0.0]),
    ];
    for (config, want) in cases.into_iter().chain(more) {
        let got = shares(config, &logits);
        for (g, w) in got.iter().zip(want) {
            // Five standard deviations; exactly zero where the probability is zero.
            let bound = 5.0 * (w * (1.0 - w) / 20_000.0f64).sqrt();
            assert!((g - w).abs() <= bound, "{config:?}: {got:?}, not {want:?}");
        }
    }
    // Negative infinity never wins, negative zero equals zero.
    let got = shares(config(2.0, 3, 1.0), &[f32::NEG_INFINITY, -0.0, 0.0, f32::NEG_INFINITY]);
    assert!(got[0] == 0.0 && got[3] == 0.0 && (got[1] - 0.5).abs() < 0.02, "{got:?}");
}

/// Penalties change the logits of recent tokens by their number of occurrences, as in llama.cpp.
#[test]
fn penalties() {
    let logits = [1.0f32, 4.0, -1.0, 3.5];
    let greedy = SamplerConfig::GREEDY;
    let cases: [(SamplerConfig, &[u32], u32); 10] = [
        (greedy, &[1, 1], 1),
        (SamplerConfig { repeat_penalty: 1.1, ..greedy }, &[1], 1),
        (SamplerConfig { repeat_penalty: 1.2, ..greedy }, &[1], 3),
        (SamplerConfig { repeat_penalty: 1.2, ..greedy }, &[0, 2], 1),
        (SamplerConfig { presence_penalty: 0.6, ..greedy }, &[1, 9], 3),
        (SamplerConfig { presence_penalty: 0.4, ..greedy }, &[1, 1, 1], 1),
        (SamplerConfig { frequency_penalty: 0.4, ..greedy }, &[1], 1),
        (SamplerConfig { frequency_penalty: 0.4, ..greedy }, &[1, 0, 1], 3),
        (SamplerConfig { frequency_penalty: -3.0, ..greedy }, &[0, 0], 0),
        // Negative logits are multiplied: all are recent, and the last becomes the least likely.
        (SamplerConfig { repeat_penalty: 100.0, ..greedy }, &[0, 1, 2, 3], 1),
    ];
    for (config, text, want) in cases {
        assert!(config.validate().is_ok() && config.fits_device() == (config == greedy));
        let got = Sampler::new(config).unwrap().sample_after(&logits, text, 7).unwrap();
        assert_eq!(got, want, "{config:?} after {text:?}");
    }
    // Only the last 64 tokens count.
    let mut text = vec![1];
    text.extend([0; 63]);
    let mut sampler = Sampler::new(SamplerConfig { repeat_penalty: 2.0, ..greedy }).unwrap();
    assert_eq!(sampler.sample_after(&logits, &text, 0).unwrap(), 3);
    text.push(0);
    assert_eq!(sampler.sample_after(&logits, &text, 0).unwrap(), 1);
    assert_eq!(sampler.sample_after(&[0.0, -1.0, -1.0, -5.0], &[0, 0], 0).unwrap(), 0);
}

/// On a large vocabulary the partial sorts keep what a full sort keeps.
#[test]
fn partial_sorting_keeps_the_right_tokens() {
    let logits: Vec<f32> = (0..1500u32).map(|i| (i.wrapping_mul(2654435761) >> 20) as f32 / 800.0).collect();
    let mut order: Vec<u32> = (0..1500).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let weights: Vec<f64> = order.iter().map(|&i| f64::from(logits[i as usize]).exp()).collect();
    for (top_k, top_p) in [(0, 0.05), (0, 0.5), (0, 0.97), (400, 1.0), (400, 0.6)] {
        let kept = if top_k == 0 { 1500 } else { top_k };
        let total: f64 = weights[..kept].iter().sum();
        let mut sum = 0.0;
        let nucleus = weights[..kept].iter().take_while(|&&w| (sum < f64::from(top_p) * total, sum += w).0).count();
        // A high temperature makes all kept tokens equally likely, so nearly all of them appear, and no others.
        let mut sampler = Sampler::new(config(1e9, top_k, top_p)).unwrap();
        let mut seen = vec![false; 1500];
        let draws = 12 * nucleus as u64;
        (0..draws).for_each(|p| seen[sampler.sample(&logits, p).unwrap() as usize] = true);
        assert!(order[nucleus..].iter().all(|&i| !seen[i as usize]), "{top_k} {top_p}: a token outside the {nucleus}");
        let hits = order[..nucleus].iter().filter(|&&i| seen[i as usize]).count();
        assert!(hits + 2 >= nucleus, "{top_k} {top_p}: {hits} of {nucleus}");
    }
}

#[test]
fn repeatable_and_dependent_on_seed_and_position() {
    let logits: Vec<f32> = (0..100).map(|i| (i % 7) as f32 * 0.1).collect();
    let run = |seed, from: u64| -> Vec<u32> {
        let mut s = Sampler::new(SamplerConfig { seed, ..config(1.0, 0, 1.0) }).unwrap();
        (from..from + 30).map(|p| s.sample(&logits, p).unwrap()).collect()
    };
    assert_eq!(run(1, 0), run(1, 0));
    assert_eq!(run(1, 0)[10..], run(1, 10)[..20]);
    assert_ne!(run(1, 0), run(2, 0));
    assert_ne!(run(1, 0), run(1 << 32 | 1, 0));
    assert_ne!(run(1, 0), run(1, 1 << 32));
}

/// The known answers published with the generator (Random123, `philox4x32 10`).
#[test]
fn philox_known_answers() {
    let ones = u32::MAX;
    let cases = [
        ([0; 4], [0; 2], [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]),
        ([ones; 4], [ones; 2], [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]),
        (
            [0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344],
            [0xa4093822, 0x299f31d0],
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1],
        ),
    ];
    for (counter, key, want) in cases {
        assert_eq!(philox4x32_10(counter, key), want);
    }
}

#[test]
fn bad_options_and_logits_are_named() {
    for (config, want) in [
        (config(-1.0, 0, 1.0), "temperature is -1"),
        (config(f32::NAN, 0, 1.0), "temperature is NaN"),
        (config(f32::INFINITY, 0, 1.0), "temperature is inf"),
        (config(1.0, 0, 0.0), "top-p is 0"),
        (config(1.0, 0, 1.1), "top-p is 1.1"),
        (config(1.0, 0, f32::NAN), "top-p is NaN"),
    ] {
        assert!(Sampler::new(config).unwrap_err().to_string().contains(want));
    }
    for temperature in [0.0, 0.7] {
        let mut s = Sampler::new(config(temperature, 40, 0.9)).unwrap();
        for (logits, want) in [
            (&[][..], "none of the 0 logits"),
            (&[0.0, f32::NAN], "position 5: the logit of token 1 is NaN"),
            (&[f32::INFINITY, 0.0], "the logit of token 0 is inf"),
            (&[f32::NEG_INFINITY; 3], "none of the 3 logits is above negative infinity"),
        ] {
            assert!(s.sample(logits, 5).unwrap_err().to_string().contains(want));
        }
        assert_eq!(s.sample(&[f32::MIN], 0).unwrap(), 0);
    }
    assert_eq!(Sampler::new(SamplerConfig::GREEDY).unwrap().sample(&[1.0, 3.0, 3.0], 0).unwrap(), 1);
}

/// The operation `sample` chooses the same tokens as the host. Its `f32` error decides none of these cases.
#[test]
fn devices_choose_what_the_host_chooses() {
    const VOCAB: usize = 1000;
    let executor = Executor::open("cpu", None).unwrap();
    let mut graph = Graph::new();
    let rows = graph.extent("rows", 64);
    let logits = graph.input("logits", DType::F32, &[rows, VOCAB.into()]).unwrap();
    let numbers = graph.input("numbers", DType::F32, &[rows, Dim::Fixed(3)]).unwrap();
    let words = graph.input("words", DType::U32, &[rows, Dim::Fixed(4)]).unwrap();
    let tokens = graph.sample(logits, numbers, words).unwrap();
    graph.output("tokens", tokens).unwrap();
    let mut plan = graph.compile(&executor, &[]).unwrap();
    let options = [
        (0.8, 40, 0.95, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 0, 0.9, 0.0),
        (1.5, 300, 0.5, 0.0),
        (0.0, 0, 1.0, 0.0),
        (2.0, 1, 0.1, 0.0),
        (1.0, 5000, 0.99, 0.0),
        (1.0, 0, 1.0, 0.05),
        (1.5, 40, 0.95, 0.2),
        (0.7, 0, 1.0, 1.0),
        (2.0, 0, 0.9, 0.3),
    ];
    for (temperature, top_k, top_p, min_p) in options {
        let config = SamplerConfig { seed: 3 << 40 | 99, min_p, ..config(temperature, top_k, top_p) };
        assert!(config.fits_device());
        let mut sampler = Sampler::new(config).unwrap();
        let (mut all, mut numbers, mut words, mut want) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for position in 1000..1064 {
            // Some whole numbers, so that some logits are equal.
            let logit = |i| {
                let [a, b, ..] = philox4x32_10([i, position, 0, 0], [5, 6]);
                let v = (a >> 8) as f32 / (1 << 21) as f32;
                if b.is_multiple_of(3) { v.floor() } else { v }
            };
            let logits: Vec<f32> = (0..VOCAB as u32).map(logit).collect();
            want.push(sampler.sample(&logits, position.into()).unwrap());
            let (n, w) = config.row(position.into());
            all.extend(logits);
            numbers.extend(n);
            words.extend(w);
        }
        plan.write("logits", &all).unwrap();
        plan.write("numbers", &numbers).unwrap();
        plan.write("words", &words).unwrap();
        plan.run().unwrap();
        assert_eq!(plan.read::<u32>("tokens").unwrap(), want, "{config:?}");
    }
}
