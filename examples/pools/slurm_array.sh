#!/usr/bin/env bash
#SBATCH --job-name=kernelpro
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --signal=B:TERM@60
# Workers for a spool: sbatch --array=1-8 slurm_array.sh /shared/spool
# Each ends when there is nothing more to do, or before its slot does. A packed worker (kernelpro worker --pack) does as well.
set -euo pipefail
spool=${1:?which spool?}
exec kernelpro worker "$spool" --once --seconds 3480
