#!/usr/bin/env bash
#SBATCH --job-name=kernelpro
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@60
# Workers for a spool. Usage: sbatch --array=1-8 slurm_array.sh /shared/spool
# A worker exits when no job is left or before its time slot ends. A packed worker (`kernelpro worker --pack`)
# can take its place.
set -euo pipefail
spool=${1:?usage: sbatch --array=1-8 slurm_array.sh SPOOL}
exec kernelpro worker "$spool" --once --time-limit 3480
