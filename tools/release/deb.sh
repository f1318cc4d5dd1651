#!/usr/bin/env bash
# Makes a Debian package of an unpacked release.
#
#     tools/release/deb.sh FOLDER VERSION TARGET OUTPUT-FOLDER
set -euo pipefail
folder=$1 version=$2 target=$3 out=$4
case $target in
  x86_64-*) architecture=amd64 ;;
  aarch64-*) architecture=arm64 ;;
  *) echo "no Debian architecture for $target" >&2; exit 1 ;;
esac
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"

install -Dm755 "$folder/hologram" "$root/usr/bin/hologram"
install -Dm644 "$folder/completions/hologram.bash" "$root/usr/share/bash-completion/completions/hologram"
install -Dm644 "$folder/completions/hologram.zsh" "$root/usr/share/zsh/vendor-completions/_hologram"
install -Dm644 "$folder/completions/hologram.fish" "$root/usr/share/fish/vendor_completions.d/hologram.fish"
for page in "$folder"/man/man1/*.1; do
  install -Dm644 "$page" "$root/usr/share/man/man1/$(basename "$page")"
done
gzip -9n "$root"/usr/share/man/man1/*.1
documents=$root/usr/share/doc/hologram
install -Dm644 "$folder/LICENSE-MIT" "$documents/copyright"
{ printf '\n\nOr, at your choice:\n\n'; cat "$folder/LICENSE-APACHE"; } >>"$documents/copyright"
install -Dm644 "$folder/CHANGELOG.md" "$documents/changelog"
gzip -9n "$documents/changelog"

mkdir -p "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: hologram
Version: $version
Architecture: $architecture
Maintainer: The Hologram project
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: libc6 (>= 2.28), libgcc-s1
Section: science
Priority: optional
Description: run language models and GPU kernels from the shell
 One binary runs GGUF and safetensors models, and kernels in the portable
 language Atlas, on NVIDIA GPUs (with nothing but the driver) and on CPUs.
END
dpkg-deb --root-owner-group --build "$root" "$out/hologram_${version}_$architecture.deb"
