//! Writes many programs in a device's language into a directory, to be compiled without the device: the programs of two
//! conformance cases of each operation and type, or with `--all` of every case but those of views; the programs of
//! `examples/`; and a hundred random ones. PTX for compute capability 8.0 and 9.0, several programs in a file, because
//! the assembler takes longer to start than to assemble one; Metal for version 3.2.
//!
//! ```text
//! cargo run -p hologram-core --example print_programs -- ptx DIRECTORY [--all]
//! for f in DIRECTORY/*.sm_80.ptx; do ptxas -arch=sm_80 -warn-spills --warning-as-error -o /dev/null "$f"; done
//! for f in DIRECTORY/*.sm_90.ptx; do ptxas -arch=sm_90a -warn-spills --warning-as-error -o /dev/null "$f"; done
//! cargo run -p hologram-core --example print_programs -- metal DIRECTORY [--all]
//! tools/metal/mslc.py check DIRECTORY/*.metal
//! ```

use std::collections::{HashMap, HashSet};
use std::error::Error;
use std::path::Path;

use hologram_isa::{Capability, Program, msl, parse, ptx, random};

const TARGETS: [ptx::PtxTarget; 2] =
    [ptx::PtxTarget { capability: 80, version: (7, 0) }, ptx::PtxTarget { capability: 90, version: (7, 8) }];

/// What Metal has no form for.
const NOT_METAL: [Capability; 2] = [Capability::F64, Capability::Atomic64];
const METAL: msl::MslTarget = msl::MslTarget { version: (3, 2) };

/// How many random programs.
const RANDOM: u64 = 100;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let usage = "usage: print_programs ptx|metal DIRECTORY [--all]";
    let metal = match args.next().as_deref() {
        Some("ptx") => false,
        Some("metal") => true,
        _ => return Err(usage.into()),
    };
    let directory = args.next().filter(|d| !d.starts_with('-')).ok_or(usage)?;
    let all = match args.next().as_deref() {
        None => false,
        Some("--all") => true,
        _ => return Err(usage.into()),
    };
    std::fs::create_dir_all(&directory)?;
    let directory = Path::new(&directory);
    let mut seen = HashSet::new();
    let mut modules = TARGETS.map(|target| Modules { directory, target, text: String::new(), programs: 0 });
    let mut write = |name: String, program: &Program, grid: [u32; 3]| -> Result<(), Box<dyn Error>> {
        if !seen.insert(program.text_hash()) || metal && NOT_METAL.iter().any(|c| c.is_needed_by(program)) {
            return Ok(());
        }
        let comment = format!("// {name}, launched on a grid of {grid:?}.\n");
        if metal {
            let text = comment + &msl::print(program, &METAL)?.text;
            std::fs::write(directory.join(format!("{name}.metal")), text)?;
        } else {
            let [first, second] = &mut modules;
            let texts = [ptx::print(program, &first.target)?, ptx::print(program, &second.target)?];
            let differs = instructions(&texts[0].text) != instructions(&texts[1].text);
            first.add(&name, &comment, &texts[0])?;
            if differs || first.programs.is_multiple_of(8) {
                second.add(&name, &comment, &texts[1])?;
            }
        }
        Ok(())
    };
    // Operations that read views get their programs from a graph, which differ in how elements are found; they are not
    // written here.
    let mut printed: HashMap<_, usize> = HashMap::new();
    for (i, case) in hologram_core::ops::cases().iter().enumerate().filter(|(_, case)| case.views.is_empty()) {
        let of_type = printed.entry((case.op.name(), case.dtype())).or_default();
        *of_type += 1;
        if *of_type > 2 && !all {
            continue;
        }
        let (program, grid) = case.program()?;
        write(format!("case{i}_{}", case.op.name()), &program, grid)?;
    }
    for entry in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "atlas") {
            let program = parse(&std::fs::read_to_string(&path)?)?;
            write(format!("example_{}", program.name), &program, [1; 3])?;
        }
    }
    for seed in 0..RANDOM {
        let lacking: &[Capability] = if metal { &NOT_METAL } else { &[] };
        let random::Case { program, grid } = random::case_without(seed, lacking)?;
        write(format!("random{seed}"), &program, grid)?;
    }
    modules.iter_mut().try_for_each(Modules::end)
}

/// The lines of a kernel but those for launches that overlap, which capability 8.0 lacks.
fn instructions(text: &str) -> Vec<&str> {
    let kernel = text.find(".visible").map_or(text, |start| &text[start..]);
    kernel.lines().filter(|line| !line.contains("griddepcontrol")).collect()
}

/// Programs in a file of PTX.
const TOGETHER: usize = 64;

/// The PTX of programs for a target, several in a file.
struct Modules<'a> {
    directory: &'a Path,
    target: ptx::PtxTarget,
    text: String,
    programs: usize,
}

impl Modules<'_> {
    fn add(&mut self, name: &str, comment: &str, kernel: &ptx::PtxKernel) -> Result<(), Box<dyn Error>> {
        // In one file each has a name of its own; what it names belongs to its entry.
        let text = kernel.text.replace(&kernel.entry, name);
        let header = text.find(".address_size 64\n").ok_or("the text has no header")? + ".address_size 64\n".len();
        if self.text.is_empty() {
            self.text += &text[..header];
        }
        self.text += comment;
        self.text += &text[header..];
        self.programs += 1;
        if self.programs.is_multiple_of(TOGETHER) { self.end() } else { Ok(()) }
    }

    fn end(&mut self) -> Result<(), Box<dyn Error>> {
        let file = format!("programs_to_{}.sm_{}.ptx", self.programs, self.target.capability);
        Ok(std::fs::write(self.directory.join(file), std::mem::take(&mut self.text))?)
    }
}
