#!/usr/bin/env bash
# Runs the test suite of the Python array API standard against the package: tests/array_api.sh SUITE [EXAMPLES]
# SUITE is a clone of github.com/data-apis/array-api-tests at tag 2026.02.26, with data-apis/array-api at 5f847a38 in
# its folder array-api; needs pytest, hypothesis, ndindex and pytest-json-report. DEVICE is the device, such as
# DEVICE=cuda. Prints the counts.
set -euo pipefail
suite=$1 examples=${2:-20}
skips=$(cd "$(dirname "$0")" && pwd)/array_api_skips.txt
cd "$suite"
export ARRAY_API_TESTS_MODULE=hologram ARRAY_API_TESTS_VERSION=2024.12 ARRAY_API_TESTS_SKIP_DTYPES=complex64,complex128
run='import sys, hologram, pytest; hologram.set_default_device(sys.argv.pop(1)); sys.exit(pytest.main(sys.argv[1:]))'
exec python -c "$run" "${DEVICE:-cpu}" array_api_tests --max-examples "$examples" --disable-extension fft \
  --skips-file "$skips" -p no:cacheprovider -q --tb=line "${@:3}"
