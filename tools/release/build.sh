#!/usr/bin/env bash
# Builds a release of the command for a target into target/dist: an archive with the binary, its man pages and shell
# completions, an archive with the debug information, and on Linux a Debian package.
#
#     tools/release/build.sh TARGET
#
# The debug information is that of the profile `profiling`. MAX_GLIBC=2.28 fails if a Linux binary needs a newer one.
set -euo pipefail
cd "$(dirname "$0")/../.."
target=${1:?usage: tools/release/build.sh TARGET}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
name=hologram-$version-$target

# A folder of debug information beside the binary, as everywhere, instead of object files of the build.
[[ $target != *-apple-* ]] || export CARGO_PROFILE_PROFILING_SPLIT_DEBUGINFO=packed
cargo build --locked --profile profiling -p hologram-cli --target "$target"

built=target/$target/profiling
dist=target/dist
rm -rf "$dist" && mkdir -p "$dist/$name/man/man1" "$dist/$name/completions"
folder=$dist/$name

# Debug information goes into an archive of its own; a debugger finds it by the binary's build number.
case $target in
  *-linux-*)
    objcopy --only-keep-debug "$built/hologram" "$dist/hologram.debug"
    objcopy --strip-debug --add-gnu-debuglink="$dist/hologram.debug" "$built/hologram" "$folder/hologram"
    binary=$folder/hologram debug=hologram.debug
    ;;
  *-apple-*)
    cp -R "$built/hologram.dSYM" "$dist/hologram.dSYM"
    cp "$built/hologram" "$folder/hologram"
    strip -S "$folder/hologram"
    # Ad hoc: Apple silicon runs nothing unsigned, and stripping made the linker's signature invalid.
    codesign --force --sign - "$folder/hologram"
    binary=$folder/hologram debug=hologram.dSYM
    ;;
  *-windows-*)
    cp "$built/hologram.exe" "$folder/hologram.exe"
    cp "$built/hologram.pdb" "$dist/hologram.pdb"
    binary=$folder/hologram.exe debug=hologram.pdb
    ;;
  *) echo "no release for $target" >&2; exit 1 ;;
esac

# The binary works, and needs no newer C library than it should.
"$binary" --version
"$binary" run --device cpu --temp 0 -n 8 'A closure in Rust is'
if [[ $target == *-linux-gnu ]]; then
  needed=$(objdump -T "$binary" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -1)
  echo "needs $needed"
  max=GLIBC_${MAX_GLIBC:-99}
  if [ "$(printf '%s\n' "$max" "$needed" | sort -V | tail -1)" != "$max" ]; then
    echo "that is newer than $max" >&2
    exit 1
  fi
fi

"$binary" man "$folder/man/man1"
for shell in bash zsh fish powershell elvish; do
  "$binary" completions "$shell" >"$folder/completions/hologram.$shell"
done
cp README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$folder"

if [[ $target == *-windows-* ]]; then
  (cd "$dist" && 7z a -bso0 "$name.zip" "$name" && 7z a -bso0 "$name-debug.zip" "$debug")
else
  tar -C "$dist" -czf "$dist/$name.tar.gz" "$name"
  tar -C "$dist" -czf "$dist/$name-debug.tar.gz" "$debug"
fi
[[ $target != *-linux-gnu ]] || tools/release/deb.sh "$folder" "$version" "$target" "$dist"
rm -r "$folder" "${dist:?}/$debug"
ls -l "$dist"
