#!/usr/bin/env bash
# Builds and packs what check.py needs on a machine with a GPU and neither Rust nor network.
#
#     tools/gpu/pack.sh OUT
#
# OUT: check.py, the release binary, the binaries of the tests that need a GPU (those with ignored tests), stripped and compressed, and the
# files of the tree that they read. At most 60 MiB.
set -euo pipefail

[ $# = 1 ] || { echo "usage: tools/gpu/pack.sh OUT" >&2; exit 2; }
mkdir -p "$1"
out=$(cd "$1" && pwd)
[ -z "$(ls -A "$out")" ] || { echo "pack.sh: $out is not empty" >&2; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"

cargo build --release -p hologram-cli
strip -o "$out/hologram" "${CARGO_TARGET_DIR:-target}/release/hologram"

mkdir "$out/tests"
binaries() {
    python3 -c '
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable") and message["target"]["kind"] in (["lib"], ["test"]) and message["profile"]["test"]:
        name, crate = message["target"]["name"], message["manifest_path"].split("/")[-2]
        # Several crates have an `all`.
        print(crate if name == "all" else name, message["executable"])'
}
cargo test --workspace --exclude hologram-cli --lib --tests --no-run --message-format=json | binaries | while read -r name path; do
    # Long tests of the CPU are ignored too, by that name.
    list=$("$path" --ignored --skip nightly_ --list --format terse 2>/dev/null)
    case $list in *": test"*)
        strip -o "$out/tests/$name" "$path" ;;
    esac
done
# Together, because each holds the same kernels.
tar -C "$out" -c tests | xz -9 > "$out/tests.tar.xz"
rm -r "$out/tests"

tree="$out/tree"
mkdir -p "$tree/crates/hologram-llm/tests" "$tree/crates/hologram-core" "$tree/crates/hologram-backends" "$tree/crates/hologram-isa" "$tree/crates/hologram-cli"
cp -r crates/hologram-llm/tests/fixtures "$tree/crates/hologram-llm/tests/fixtures"
cp -r crates/hologram-cli/assets "$tree/crates/hologram-cli/assets"
cp -r examples "$tree/"
cp tools/gpu/check.py tools/gpu/held-out.json "$out/"
# Tests find their files by the path at which they were built.
echo "$root" > "$out/root"
{ git rev-parse HEAD 2>/dev/null || echo unknown; } > "$out/revision"

size=$(du -sk "$out" | cut -f1)
echo "$out: $((size / 1024)) MiB"
[ "$size" -le $((60 * 1024)) ] || { echo "pack.sh: more than 60 MiB" >&2; exit 1; }
