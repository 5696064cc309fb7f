#!/usr/bin/env bash
# Judge on a machine that shares nothing with this one: one file goes there, one comes back.
# The folders `here` and `there` stand for the two machines. Usage: air_gap.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-$(mktemp -d)}
mkdir -p "$folder/here" "$folder/there"
task=examples/cpu/residual_layernorm

judge() {
    kernelpro judge $task/task.py $task/cpp_fused.py $task/cpp_drops_bias.py \
        --target cpu --quick --pool "spool:$folder/here/spool"
}

judge || test $? -eq 3    # exit code 3: two results are outstanding
kernelpro spool pack "$folder/here/spool" "$folder/here/jobs.jsonl"
kernelpro worker --pack "$folder/here/kernelpro-worker.pyz"

cp "$folder"/here/jobs.jsonl "$folder"/here/kernelpro-worker.pyz "$folder/there/"
(cd "$folder/there" && python3 kernelpro-worker.pyz jobs.jsonl --once --time-limit 600)
cp "$folder/there/jobs.results.jsonl" "$folder/here/"

kernelpro spool merge "$folder/here/spool" "$folder/here/jobs.results.jsonl"
judge || test $? -eq 1    # exit code 1: one candidate passes, one is wrong
