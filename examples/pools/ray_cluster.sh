#!/usr/bin/env bash
# Judge on a Ray cluster of two nodes, both on this machine. `ray stop` at the end stops every Ray process of
# this machine.
set -euo pipefail
cd "$(dirname "$0")/../.."
export RAY_USAGE_STATS_ENABLED=0 RAY_worker_niceness=0
ray start --head --port=6390 --num-cpus=1 --include-dashboard=false
trap 'ray stop' EXIT
ray start --address=127.0.0.1:6390 --num-cpus=1

task=examples/cpu/residual_layernorm
kernelpro judge $task/task.py $task/cpp_fused.py $task/cpp_drops_bias.py \
    --target cpu --quick --pool ray:127.0.0.1:6390 || test $? -eq 1    # one candidate is wrong
