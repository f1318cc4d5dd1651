#!/usr/bin/env python3
"""Plants bugs into the code that chooses, records and submits Metal's launches, one after the other, and runs the test that must fail of
each. The files are changed in place, and restored at the end: none of them may have changes that are not committed.

    host_mutants.py [NAME…]      plants all, or those of these names
"""
import os, subprocess, sys, time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
METAL, GPU = "crates/hologram-metal/src/metal/", "crates/hologram-gpu/src/"
UNIT = ["cargo", "test", "-q", "-p", "hologram-gpu", "--lib"]
DOUBLE = ["tools/metal/double/run.sh", "-q", "--test"]

# Name, file, what is changed in it, and the test that must fail.
MUTANTS = [
    ("no barrier before a kernel's second launch", METAL + "builder.rs",
     "(step.launch, step.barrier) = (launch, hazards.needs_barrier(uses.iter()));\n                        steps.push(step);\n                        seconds.push(parts::seconds(pipeline",
     "let after = steps.last().is_some_and(|s: &Step| s.launch == launch);\n                        (step.launch, step.barrier) = (launch, hazards.needs_barrier(uses.iter()) && !after);\n"
     "                        steps.push(step);\n                        seconds.push(parts::seconds(pipeline", [*DOUBLE, "scratch"]),
    ("scratch memory is no hazard", METAL + "builder.rs", ".filter(|_| kernel.scratch > 0)", ".filter(|_| kernel.scratch > usize::MAX - 1)", [*DOUBLE, "scratch"]),
    ("a list does not keep its buffers", METAL + "builder.rs", "_buffers: buffers_of(self.launches),", "_buffers: buffers_of(&self.launches[..0]),", [*DOUBLE, "devices", "keeps_its_buffers"]),
    ("the host writes to memory in use", METAL + "queue.rs", "let by_device = to.last_use() > self.passed;", "let by_device = to.last_use() > u64::MAX - 1;", [*DOUBLE, "device", "copied_in_order"]),
    ("a block is leaked with each submission", METAL + "queue.rs", "            commands.0.commit();", "            std::mem::forget(handler.clone());\n            commands.0.commit();", [*DOUBLE, "selftests"]),
    ("too few workgroups for a prompt", GPU + "attention/simdgroup.rs", "tokens.max().div_ceil(tokens_at_a_time)", "(tokens.max() * (sizes.heads / sizes.kv_heads)).div_ceil(ROWS)",
     [*UNIT, "prompts_have_workgroups"]),
    ("a write after a read is no hazard", GPU + "hazards.rs", " || u.write && meets(&self.read, u)", "", [*UNIT, "hazards"]),
    ("several workgroups store a new row", GPU + "attention/few.rs", "(tokens.max() > 1 || slices > 1)", "(tokens.max() > 8 || slices > 8)", [*UNIT, "one_workgroup_stores"]),
]


def planted(name, file, old, new, command):
    """What is wrong with the search for a bug, or None."""
    path = os.path.join(ROOT, file)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    if text.count(old) != 1:
        return f"{file} has {text.count(old)} places like {old!r}"
    try:
        with open(path, "w", encoding="utf-8") as f:
            f.write(text.replace(old, new))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    finally:
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
    out = done.stdout + done.stderr
    if "error[E" in out or "could not compile" in out:
        return f"it does not compile: {out[-1500:]}"
    return None if done.returncode else f"{' '.join(command)} passes"


def main():
    chosen = [m for m in MUTANTS if not sys.argv[1:] or m[0] in sys.argv[1:]]
    files = sorted({m[1] for m in chosen})
    if subprocess.run(["git", "diff", "--quiet", "HEAD", "--", *files], cwd=ROOT).returncode:
        sys.exit(f"there are changes in {', '.join(files)}")
    wrong = 0
    for mutant in chosen:
        start = time.time()
        message = planted(*mutant)
        wrong += message is not None
        print(f"{'found' if message is None else 'NOT FOUND'} in {time.time() - start:.0f} s: {mutant[0]}{': ' + message if message else ''}", flush=True)
    print(f"{len(chosen)} planted: {wrong} judged wrong")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
