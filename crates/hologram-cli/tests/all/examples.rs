//! Every program of `examples/` in the built command, on the CPU and on the reference interpreter, against values
//! computed here independently; and the commands of docs/programs.md.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use crate::common::*;
use hologram_isa::random::Random;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
const PROGRAMS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/programs.md");

/// Numbers between -2 and 2.
fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut random = Random(seed);
    (0..n).map(|_| random.below(1 << 20) as f32 / (1 << 18) as f32 - 2.0).collect()
}

/// One run of an example.
struct Run<'a> {
    name: &'a str,
    grid: String,
    args: Vec<String>,
    folder: &'a Folder,
}

impl<'a> Run<'a> {
    fn new(folder: &'a Folder, name: &'a str, grid: impl ToString) -> Run<'a> {
        Run { name, grid: grid.to_string(), args: Vec::new(), folder }
    }

    fn file(mut self, name: &str, content: Vec<u8>) -> Self {
        let path = self.folder.write(&format!("{name}.npy"), content);
        self.args.push(format!("{name}=@{path}"));
        self
    }

    fn f32(self, name: &str, values: &[f32]) -> Self {
        self.file(name, f32_npy(values))
    }

    fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }

    /// The 4-byte elements of the only result, which must be the same on both devices.
    fn result(self) -> Vec<[u8; 4]> {
        let file = format!("{EXAMPLES}/{}.atlas", self.name);
        let out = self.folder.path("out.npy");
        let of = |device: &str| {
            let mut args = vec!["exec", &file, "--grid", &self.grid, "--device", device, "--out", &out];
            args.extend(self.args.iter().flat_map(|a| ["--arg", a]));
            ok(&args);
            read_npy(&out).1
        };
        let cpu = of("cpu");
        assert_eq!(cpu, of("reference"), "{}", self.name);
        cpu
    }

    fn f32_result(self) -> Vec<f32> {
        self.result().into_iter().map(f32::from_le_bytes).collect()
    }

    fn u32_result(self) -> Vec<u32> {
        self.result().into_iter().map(u32::from_le_bytes).collect()
    }
}

/// Checks values against an `f64` computation.
fn close(got: &[f32], want: &[f64], bound: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(*got) - want).abs() <= bound, "element {i} is {got}, not {want}");
    }
}

fn vector_add(folder: &Folder) {
    let (x, y) = (random(600, 1), random(600, 2));
    let run = Run::new(folder, "vector_add", 3).f32("x", &x).f32("y", &y).arg("out=out:f32[600]").arg("n=600");
    assert_eq!(run.f32_result(), x.iter().zip(&y).map(|(x, y)| x + y).collect::<Vec<_>>());
}

fn softmax(folder: &Folder) {
    let x = random(3 * 301, 3);
    let run = Run::new(folder, "softmax", 3).f32("x", &x).arg("out=out:f32[3,301]").arg("columns=301");
    let want = x.chunks(301).flat_map(|row| {
        let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
        row.iter().map(move |v| f64::from(*v).exp() / sum)
    });
    close(&run.f32_result(), &want.collect::<Vec<_>>(), 1e-8);
}

fn rmsnorm(folder: &Folder) {
    // bf16 numbers are the upper halves of f32. Two of them are one element of four bytes.
    let x: Vec<u32> = random(2 * 320, 4).into_iter().map(|v| v.to_bits() >> 16).collect();
    let weight = random(320, 5);
    let pairs = x.chunks(2).map(|p| (p[0] | p[1] << 16).to_le_bytes());
    let run = Run::new(folder, "rmsnorm", 2).file("x", npy("<u2", "(2, 320)", pairs)).f32("weight", &weight);
    let got = run.arg("out=out:bf16[2,320]").arg("columns=320").arg("epsilon=1e-5").u32_result();
    let value = |bits: u32| f64::from(f32::from_bits(bits << 16));
    let got: Vec<f64> = got.iter().flat_map(|pair| [value(pair & 0xffff), value(pair >> 16)]).collect();
    for (row, got) in x.chunks(320).zip(got.chunks(320)) {
        let mean = row.iter().map(|v| value(*v).powi(2)).sum::<f64>() / 320.0;
        for ((x, w), got) in row.iter().zip(&weight).zip(got) {
            let want = value(*x) / (mean + 1e-5).sqrt() * f64::from(*w);
            // bf16 has 8 significant bits.
            assert!((got - want).abs() <= want.abs() / 256.0 + 1e-6, "{got}, not {want}");
        }
    }
}

fn matmul(folder: &Folder) {
    let (m, n, k) = (37, 50, 70);
    let (a, b) = (random(m * k, 6), random(k * n, 7));
    let mut want = vec![0.0; m * n];
    for i in 0..m {
        for j in 0..n {
            want[i * n + j] = (0..k).map(|l| f64::from(a[i * k + l]) * f64::from(b[l * n + j])).sum();
        }
    }
    let run = Run::new(folder, "matmul", "4,3").f32("a", &a).f32("b", &b).arg("c=out:f32[37,50]");
    close(&run.arg("m=37").arg("n=50").arg("k=70").f32_result(), &want, 1e-4);
}

fn matmul_tiles(folder: &Folder) {
    let (m, n, k) = (32, 64, 24);
    // Whole numbers up to 15. As f16 they are the upper bits of the f32 with another bias, and their sums are exact.
    let numbers = |count: usize, seed: u64| -> Vec<f32> {
        let mut random = Random(seed);
        (0..count).map(|_| random.below(31) as f32 - 15.0).collect()
    };
    let half = |v: f32| {
        let bits = v.to_bits();
        if v == 0.0 { 0 } else { (bits >> 16 & 0x8000) | ((bits & 0x7fff_ffff) - (112 << 23)) >> 13 }
    };
    let words =
        |v: &[f32]| -> Vec<[u8; 4]> { v.chunks(2).map(|p| (half(p[0]) | half(p[1]) << 16).to_le_bytes()).collect() };
    let (a, b) = (numbers(m * k, 10), numbers(n * k, 11));
    let dot = |i: usize, j: usize| (0..k).map(|l| f64::from(a[i * k + l] * b[j * k + l])).sum::<f64>();
    let want: Vec<f64> = (0..m * n).map(|at| dot(at / n, at % n)).collect();
    let file = |v: &[f32]| npy("<u4", &format!("({},)", v.len() / 2), words(v));
    let run = Run::new(folder, "matmul_tiles", "2,2").file("a", file(&a)).file("b", file(&b)).arg("c=out:f32[32,64]");
    close(&run.arg("n=64").arg("k=24").f32_result(), &want, 0.0);
}

fn prefix_sum(folder: &Folder) {
    for n in [1usize, 255, 256, 700] {
        let mut random = Random(8);
        let x: Vec<u32> = (0..n).map(|_| random.below(1 << 30) as u32).collect();
        let mut sum = 0u32;
        let mut add = |v: &u32| {
            sum = sum.wrapping_add(*v);
            sum
        };
        let want: Vec<u32> = x.iter().map(&mut add).collect();
        let file = npy("<u4", &format!("({n},)"), x.iter().map(|v| v.to_le_bytes()));
        let run =
            Run::new(folder, "prefix_sum", 1).file("x", file).arg(format!("out=out:u32[{n}]")).arg(format!("n={n}"));
        assert_eq!(run.u32_result(), want);
    }
}

fn histogram(folder: &Folder) {
    let n = 4000;
    let mut random = Random(9);
    let x: Vec<u8> = (0..n).map(|_| random.below(16) as u8 * random.below(16) as u8).collect();
    let mut want = vec![0u32; 256];
    x[..n - 5].iter().for_each(|v| want[usize::from(*v)] += 1);
    let file = npy("|u1", &format!("({n},)"), x.chunks(4).map(|c| [c[0], c[1], c[2], c[3]]));
    for groups in [1, 3] {
        let run = Run::new(folder, "histogram", groups).file("x", file.clone()).arg("bins=out:u32[256]");
        assert_eq!(run.arg(format!("n={}", n - 5)).u32_result(), want, "{groups} workgroups");
    }
}

#[test]
fn every_example_computes_what_it_says() {
    type Check = fn(&Folder);
    let examples: [(&str, Check); 7] = [
        ("vector_add", vector_add),
        ("softmax", softmax),
        ("rmsnorm", rmsnorm),
        ("matmul", matmul),
        ("matmul_tiles", matmul_tiles),
        ("prefix_sum", prefix_sum),
        ("histogram", histogram),
    ];
    let files: BTreeSet<String> =
        fs::read_dir(EXAMPLES).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(files, examples.iter().map(|(name, _)| format!("{name}.atlas")).collect());
    for (name, check) in examples {
        check(&Folder::new(name));
    }
}

/// The commands of docs/programs.md print the output that it shows; `…` matches anything.
#[test]
fn the_page_on_programs_shows_their_output() {
    let folder = Folder::new("readme");
    fs::create_dir(folder.0.join("examples")).unwrap();
    for entry in fs::read_dir(EXAMPLES).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.0.join("examples").join(path.file_name().unwrap())).unwrap();
    }
    // The arrays that the page makes with NumPy, and its faulty program.
    let numbers = |descr, of: &dyn Fn(u32) -> u32| npy(descr, "(1000,)", (0..1000).map(|i| of(i).to_le_bytes()));
    folder.write("x.npy", numbers("<f4", &|i| (i as f32).to_bits()));
    folder.write("y.npy", numbers("<f4", &|_| 1f32.to_bits()));
    folder.write("u.npy", numbers("<u4", &|i| i % 10));
    folder.write("b.npy", npy("|u1", "(1000,)", (0..250u32).map(|i| [0, 1, 2, 3].map(|j| ((4 * i + j) % 7) as u8))));
    folder.write("h.npy", npy("<u2", "(1000,)", (0..500).map(|_| 0x3f80_3f80u32.to_le_bytes())));
    let add = fs::read_to_string(Path::new(EXAMPLES).join("vector_add.atlas")).unwrap();
    folder.write("bad.atlas", add.replace("%b = load.f32 y[%i]", "%b = cvt.u32 %a"));

    let page = fs::read_to_string(PROGRAMS).unwrap();
    let mut lines = page.lines().peekable();
    let mut commands = 0;
    while let Some(line) = lines.next() {
        let programs = ["exec", "check", "asm", "disasm", "head"];
        let Some(line) = line.strip_prefix("$ ") else { continue };
        let word = line.split_whitespace().find(|w| *w != "hologram").unwrap();
        if !programs.contains(&word) || !line.contains(".atlas") {
            continue;
        }
        let mut expected = Vec::new();
        while let Some(next) = lines.next_if(|l| !l.starts_with("$ ") && !l.starts_with("```")) {
            expected.push(next);
        }
        for program in ["sh", "bash", "zsh"] {
            let Some((_, output)) = shell(program, &folder, line) else { continue };
            // The reason for not using a GPU differs between machines.
            let got: Vec<&str> = output.lines().filter(|l| !l.starts_with("note: ")).collect();
            assert!(matches(&expected, &got), "{program}$ {line}\n{output}\nnot\n{}", expected.join("\n"));
        }
        commands += 1;
    }
    assert!(commands >= 10, "only {commands} commands were found");
}

/// Whether lines match the expected ones, where `…` at a line's end or as a whole line matches anything.
fn matches(expected: &[&str], got: &[&str]) -> bool {
    match expected {
        [] => got.is_empty(),
        ["…"] => true,
        ["…", rest @ ..] => (0..=got.len()).any(|i| matches(rest, &got[i..])),
        [line, rest @ ..] => got.split_first().is_some_and(|(first, others)| {
            let same = line.strip_suffix('…').map_or(line == first, |start| first.starts_with(start));
            same && matches(rest, others)
        }),
    }
}
