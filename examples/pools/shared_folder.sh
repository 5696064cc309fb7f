#!/usr/bin/env bash
# Judge with two workers on a shared folder (a spool). On a cluster the folder is on a shared file system and
# the workers run on GPU hosts. Usage: shared_folder.sh [SPOOL]
set -euo pipefail
cd "$(dirname "$0")/../.."
spool=${1:-$(mktemp -d)/spool}
mkdir -p "$spool"

kernelpro worker "$spool" & first=$!
kernelpro worker "$spool" & second=$!
trap 'kill $first $second' EXIT

task=examples/cpu/residual_layernorm
kernelpro judge $task/task.py $task/cpp_fused.py $task/cpp_drops_bias.py \
    --target cpu --quick --pool "spool:$spool" --wait || test $? -eq 1    # one candidate is wrong
kernelpro spool status "$spool"
