#!/usr/bin/env bash
# Checks the C interface: the header is what cbindgen makes of the sources, the libraries export its functions and no
# other, the C programs and the documentation's snippets compile without warnings and run. Needs cargo, cc and Python.
# With clang it imports the Swift module, with Go it runs the Go example; it says what it skips.
#
#     crates/hologram-c/check.sh            compares the header
#     crates/hologram-c/check.sh --update   writes it
#
# CBINDGEN names a cbindgen that is there already; otherwise it is compiled once, into the target folder (half a minute).
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
  printf 'FAILED: %s\n' "$*" >&2
  exit 1
}

cbindgen=${CBINDGEN:-}
if [ -z "$cbindgen" ]; then
  version=0.29.4
  tools=$(cd ../.. && mkdir -p "${CARGO_TARGET_DIR:-target}/tools" && cd "${CARGO_TARGET_DIR:-target}/tools" && pwd)
  cbindgen=$tools/bin/cbindgen
  if [ "$("$cbindgen" --version 2>/dev/null || true)" != "cbindgen $version" ]; then
    # Unoptimised, because compiling takes much longer than the run.
    cargo install cbindgen --version "$version" --locked --quiet --debug --force --root "$tools" --target-dir "$work/tools"
  fi
fi
"$cbindgen" --quiet --config cbindgen.toml --output "$work/hologram.h"
if [ "${1-}" = --update ]; then
  cp "$work/hologram.h" hologram.h
fi
diff -u hologram.h "$work/hologram.h" || fail "hologram.h is out of date: check.sh --update"

# What is built for the tests of all packages, so that nothing is compiled twice.
(cd ../.. && cargo build --locked --workspace --lib --example tour && cargo test --locked --quiet --workspace --lib --no-run)
built=$(cd ../.. && cd "${CARGO_TARGET_DIR:-target}/debug" && pwd)

# Functions of the header and of the library.
grep -oE '\bhologram_[a-z_]+\(' hologram.h | tr -d '(' | sort -u >"$work/header"
if [ "$(uname)" = Darwin ]; then
  nm -gU "$built/libhologram.dylib" | sed -n 's/.* T _//p' | sort -u >"$work/exported"
else
  nm -D --defined-only "$built/libhologram.so" | sed -n 's/.* T //p' | sort -u >"$work/exported"
fi
diff "$work/header" "$work/exported" || fail "the library does not export just what the header declares"
echo "$(wc -l <"$work/header") functions"

strict=(-std=c11 -Wall -Wextra -Wpedantic -Wno-overlength-strings -Werror -I .)
for program in tests/interface examples/tensors examples/generate; do
  cc "${strict[@]}" "$program.c" -L "$built" -lhologram -Wl,-rpath,"$built" -lm -o "$work/$(basename "$program")"
done
if command -v c++ >/dev/null; then
  echo '#include <hologram.h>' | c++ -std=c++17 -Wall -Wextra -Werror -I . -x c++ -fsyntax-only -
fi
model=$(cd .. && pwd)/hologram-llm/tests/fixtures/chat-tiny.gguf
"$work/interface" "$model"
"$work/tensors" >"$work/out"
diff - "$work/out" <<'OUT'
x * x = [1, 4, 9, 16]
softmax(x * x - x) = [6.1287e-06, 4.52853e-05, 0.0024725, 0.997476]
scale(x, 10) = [10, 20, 30, 40]
OUT
"$work/generate" "$model" Hello cpu | grep -q . || fail "generate printed nothing"

# The static library serves too.
if [ "$(uname)" = Linux ]; then
  cc "${strict[@]}" tests/interface.c "$built/libhologram.a" -lm -lpthread -ldl -o "$work/static"
  "$work/static" "$model"
fi

# Every snippet of the documentation, in a program of its own.
python3 - "$work" <<'PY'
import pathlib, re, sys
text = pathlib.Path("../../docs/c.md").read_text()
for i, snippet in enumerate(re.findall(r"```c\n(.*?)```", text, re.S)):
    pathlib.Path(sys.argv[1], f"snippet{i}.c").write_text(snippet)
PY
for snippet in "$work"/snippet*.c; do
  cc "${strict[@]}" "$snippet" -L "$built" -lhologram -Wl,-rpath,"$built" -o "${snippet%.c}"
  "${snippet%.c}" "$model"
done

# Swift reads the module map by clang, which imports it here from Objective-C.
clang=$(command -v clang || command -v clang-19 || true)
if [ -n "$clang" ]; then
  printf '@import Hologram;\nint main(void) { return hologram_abi_version() != HOLOGRAM_ABI_VERSION; }\n' >"$work/module.m"
  "$clang" -fmodules -fmodules-cache-path="$work/modules" -I swift -Wall -Werror "$work/module.m" \
    -L "$built" -lhologram -Wl,-rpath,"$built" -o "$work/module"
  "$work/module" || fail "the Swift module has another version than the library"
else
  echo 'skipped: the Swift module, because there is no clang'
fi

# The Go example, without a C compiler. GOFLAGS=-modfile=FILE takes purego from another place.
library=$built/libhologram.so
[ "$(uname)" != Darwin ] || library=$built/libhologram.dylib
if ! command -v go >/dev/null; then
  echo 'skipped: the Go example, because there is no Go'
elif ! (cd examples/go && go mod download) 2>"$work/go"; then
  echo "skipped: the Go example, because purego is not to be had: $(tail -n 1 "$work/go")"
else
  (cd examples/go && CGO_ENABLED=0 go build -o "$work/example" .)
  "$work/example" "$library" | grep -q '\[1 4 9 16\]$' || fail "the Go example computes something else"
fi
