//! Self-tests of native kernels: what a faulty compiler makes wrong does not serve, and the verdict is kept.

use std::time::Instant;

use hologram_backends::take_notes;
use hologram_core::{Executor, Tensor};
use metal_double::{counts, plant};

/// Runs softmax on a new device, compares with the reference, and gives the kernels that were run, the first time and
/// again.
fn softmax() -> [i64; 2] {
    let executor = Executor::open("metal", None).unwrap();
    let values: Vec<f32> = (0..3 * 64).map(|i| ((i * 37) % 23) as f32 / 7.0).collect();
    let x = Tensor::from_slice(&executor, &[3, 64], &values).unwrap();
    let run = || {
        let before = counts().dispatches;
        let got = x.softmax(1).unwrap().to_vec::<f32>().unwrap();
        for (got, row) in got.chunks(64).zip(values.chunks(64)) {
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            for (got, value) in got.iter().zip(row) {
                let want = f64::from(*value).exp() / sum;
                assert!((f64::from(*got) - want).abs() < 1e-6, "{got}, not {want}");
            }
        }
        counts().dispatches - before
    };
    [run(), run()]
}

fn one_note(parts: &[&str]) {
    let notes = take_notes();
    assert_eq!(notes.len(), 1, "{notes:?}");
    for part in parts {
        assert!(notes[0].contains(part), "{} lacks {part}", notes[0]);
    }
}

/// In one test: the cache and the compiler are the process's.
#[test]
fn kernels_that_fail_do_not_serve_and_tests_are_not_repeated() {
    let folder = std::env::temp_dir().join(format!("hologram-selftests-{}", std::process::id()));
    let fresh = || {
        let _ = std::fs::remove_dir_all(&folder);
    };
    // SAFETY: the test is the only one of its process.
    unsafe { std::env::set_var("HOLOGRAM_CACHE", &folder) };
    fresh();
    // A kernel that is right: tested at the first start, not at the second.
    let [first, again] = softmax();
    assert!(first >= 2 && again == 1, "{first} {again}");
    assert_eq!(softmax(), [1, 1]);
    assert_eq!(take_notes(), [""; 0]);
    // What is kept belongs to a system, a language version and compiler options.
    let kept: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| std::fs::read(entry.unwrap().path()).unwrap()).collect();
    for entry in &kept {
        let key = "system 15.0.0, family 7, language 3.1, safe math, precise functions";
        assert!(entry.windows(key.len()).any(|part| part == key.as_bytes()), "{}", String::from_utf8_lossy(entry));
    }
    assert!(kept.len() >= 2, "a kernel and a verdict");
    // macOS 14 has another switch for safe math.
    // SAFETY: no other thread reads the environment now.
    unsafe { std::env::set_var("METAL_DOUBLE_SYSTEM", "14") };
    let [first, again] = softmax();
    assert!(first >= 2 && again == 1, "{first} {again}");
    // SAFETY: as above.
    unsafe { std::env::remove_var("METAL_DOUBLE_SYSTEM") };

    // One that computes something else: the program runs in its place, which is said with the first result at each
    // start.
    fresh();
    plant("s = 1.0f / workgroup_sum", "s = 1.001f / workgroup_sum");
    let [first, again] = softmax();
    assert!(first >= 2 && again == 1, "{first} {again}");
    one_note(&["the kernel softmax_2 (softmax) fails its self-test", "beyond their bounds", "programs run in its place"]);
    assert_eq!(softmax(), [1, 1]);
    one_note(&["the kernel softmax_2 (softmax) fails its self-test", "beyond their bounds"]);
    // On a compiler without the fault the kept verdict is still that of this system: whoever empties the cache has it
    // tested anew.
    plant("", "");
    assert_eq!(softmax(), [1, 1]);
    one_note(&["the kernel softmax_2 (softmax) fails its self-test"]);
    fresh();
    let [first, again] = softmax();
    assert!(first >= 2 && again == 1, "{first} {again}");
    assert_eq!(take_notes(), [""; 0]);

    // One that is refused by the compiler.
    fresh();
    plant("s = 1.0f / workgroup_sum", "s = 1.0f \" workgroup_sum");
    assert_eq!(softmax(), [1, 1]);
    one_note(&["the kernel softmax_2 (softmax) fails its self-test", "error"]);
    plant("", "");
    fresh();
    let start = Instant::now();
    softmax();
    println!("{:.2} s with the self-test", start.elapsed().as_secs_f64());
    take_notes();
    fresh();
    assert_eq!(metal_double::live_objects(), 0);
}
