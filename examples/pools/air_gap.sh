#!/usr/bin/env bash
# Two machines that share nothing: `here` asks, `there` has the hardware. One file goes over, one comes back.
set -euo pipefail
cd "$(dirname "$0")/../.."
place=${1:-$(mktemp -d)}
mkdir -p "$place/here" "$place/there"
task=examples/cpu/residual_layernorm

ask() { kernelpro judge $task/task.py $task/cpp_fused.py $task/cpp_drops_bias.py --target cpu --quick --pool "spool:$place/here/spool"; }

ask || test $? -eq 3                                   # 2 results outstanding
kernelpro spool pack "$place/here/spool" "$place/here/jobs.jsonl"
kernelpro worker --pack "$place/here/kernelpro-worker.pyz"

cp "$place"/here/jobs.jsonl "$place"/here/kernelpro-worker.pyz "$place/there/"
(cd "$place/there" && python3 kernelpro-worker.pyz jobs.jsonl --once --seconds 600)
cp "$place/there/jobs.results.jsonl" "$place/here/"

kernelpro spool merge "$place/here/spool" "$place/here/jobs.results.jsonl"
ask || test $? -eq 1                                   # one candidate passes, one is wrong
