#!/usr/bin/env bash
# Tests the package with PyTorch: python/tests/torch_env.sh DIRECTORY [PYTEST_ARGUMENT…]
# The first run installs torch and transformers into the environment DIRECTORY and says how long that took; later runs
# use it again. TORCH is the version to install, such as TORCH=torch==2.11.0.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
directory=$(realpath -m "$1")
shift
tests=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$directory/bin
if ! "$bin/python" -c 'import torch, transformers, pytest' 2>/dev/null; then
  start=$SECONDS
  "${PYTHON:-python3}" -m venv "$directory"
  "$bin/pip" install --quiet --disable-pip-version-check "${TORCH:-torch}" transformers expecttest -r "$tests/../requirements-test.txt"
  echo "installed $("$bin/python" -c 'import torch, transformers; print("torch", torch.__version__, "and transformers", transformers.__version__)') in $((SECONDS - start)) s, $(du -sh "$directory" | cut -f1)"
fi
start=$SECONDS
VIRTUAL_ENV=$directory PATH=$bin:$PATH maturin develop --quiet --locked --manifest-path "$tests/../Cargo.toml" --profile "${PROFILE:-release}"
echo "built the package in $((SECONDS - start)) s"
exec "$bin/python" -m pytest -q --show-capture=no -p no:cacheprovider "$tests/pytorch" "$@"
