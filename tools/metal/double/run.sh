#!/usr/bin/env bash
# Runs the Metal backend against the test double: run.sh [arguments of cargo test]. Needs clang-19 (with libobjc) and python3.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../../.. && pwd)
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$root/target}
# The one obstacle off Apple's platforms is that objc2-metal names a framework in its link attribute: a copy with that line changed.
cargo fetch --quiet --manifest-path "$root/Cargo.toml"
version=$(sed -n '/^name = "objc2-metal"$/{n;s/version = "\(.*\)"/\1/p}' "$root/Cargo.lock")
patched=$CARGO_TARGET_DIR/metal-double/objc2-metal
if ! grep -qs "^version = \"$version\"" "$patched/Cargo.toml"; then
  source=$(ls -d "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"objc2-metal-$version" | head -1)
  rm -rf "$patched" && mkdir -p "$(dirname "$patched")" && cp -r "$source" "$patched" && chmod -R u+w "$patched"
  line='#[link(name = "Metal", kind = "framework")]'
  sed -i 's/^#\[link(name = "Metal", kind = "framework")\]$/#[cfg_attr(target_vendor = "apple", link(name = "Metal", kind = "framework"))]/' "$patched/src/generated/mod.rs"
  ! grep -qxF "$line" "$patched/src/generated/mod.rs" || { echo "objc2-metal's link attribute has another form" >&2; exit 1; }
fi
# Not the user's cache of compiled kernels.
export HOLOGRAM_CACHE=$CARGO_TARGET_DIR/metal-double/cache
# Compiled kernels, which stay in the target folder, name the runtime of the kernel tools by its path: it stays there too, for each state of the tools.
tools=$(cat "$root"/tools/metal/*.py "$root"/tools/metal/shim/* | sha256sum | cut -c1-16)
export MSL_CACHE=$CARGO_TARGET_DIR/metal-double/tools-$tools
# The kernels' compiler takes what several tests ask for at once together.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-8}
# In a workspace with our other crates, those that Metal does not change are what was compiled for the other tests.
workspace=$CARGO_TARGET_DIR/metal-double/workspace
rm -rf "$workspace"
python3 "$root/tools/one-workspace.py" "$workspace" tools/metal/double
cd "$workspace/tools/metal/double"
# The kernels take most of the time of tests; optimising what is compiled for them alone would take longer than it saves.
slow=()
for package in hologram-llm metal-double; do
  slow+=(--config "profile.dev.package.$package.opt-level=0")
done
run() { cargo test --config "patch.crates-io.objc2-metal.path=\"$patched\"" "${slow[@]}" "$@"; }
if [ $# -gt 0 ]; then
  run "$@"
  exit
fi
# The longest tests, which are one thread each, run one after the other beside all others.
run --no-run
long=() others=(--lib)
for test in tests/*.rs; do
  name=$(basename "$test" .rs)
  case $name in
    models | sequences) long+=(--test "$name") ;;
    *) others+=(--test "$name") ;;
  esac
done
log=$(mktemp)
trap 'rm -f "$log"' EXIT
run "${long[@]}" >"$log" 2>&1 &
beside=$!
good=0
run "${others[@]}" || good=1
wait "$beside" || good=1
cat "$log"
exit "$good"
