#!/bin/sh
# Runs MaskBench's schemas and instances through the server's constraints and through llguidance alone: maskbench.sh
# FOLDER [EVERY]. FOLDER is maskbench/data of github.com/guidance-ai/jsonschemabench; one of EVERY files is taken.
set -eu
MASKBENCH=$(cd "$1" && pwd) MASKBENCH_EVERY=${2:-1} \
    cargo test -p hologram-llm --lib -- --ignored --nocapture --exact engine::maskbench::maskbench
