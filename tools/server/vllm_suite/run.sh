#!/bin/sh
# Runs vLLM's tests of its HTTP server against `hologram serve`: run.sh VLLM-SOURCES [pytest's options]
# VLLM-SOURCES is the folder of a source distribution of vLLM 0.11.0. Environment: see utils.py.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
sources=$(cd "$1" && pwd)
shift
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/tests/v1/entrypoints"
cp -r "$sources/tests/entrypoints" "$tree/tests/entrypoints"
cp -r "$sources/tests/v1/entrypoints/openai" "$tree/tests/v1/entrypoints/openai"
rm "$tree/tests/entrypoints/openai/conftest.py"
cp "$here/utils.py" "$tree/tests/"
cp -r "$here/stubs/." "$tree/"
find "$tree/tests" -type d -exec touch {}/__init__.py \;
cd "$tree"
python -m pytest -p no:cacheprovider --asyncio-mode=auto -rA "$@" \
    tests/v1/entrypoints/openai/test_completion.py tests/v1/entrypoints/openai/test_chat_completion.py \
    tests/entrypoints/openai/test_chat.py tests/entrypoints/openai/test_chat_echo.py \
    tests/entrypoints/openai/test_basic.py tests/entrypoints/openai/test_models.py \
    tests/entrypoints/openai/test_chunked_prompt.py tests/entrypoints/openai/test_uds.py \
    tests/entrypoints/openai/test_optional_middleware.py tests/entrypoints/openai/test_root_path.py \
    tests/entrypoints/openai/test_completion_with_function_calling.py tests/entrypoints/openai/test_tokenization.py \
    tests/entrypoints/openai/test_return_token_ids.py
