#!/usr/bin/env bash
# From a fresh clone to text: environment, build, demo model, then plain and speculative decoding side by side.
#   bash tools/quickstart.sh [options of tools/demo.py, for instance --dtype bfloat16 or --draft DIR]
# Where there is a GPU it builds for that and runs on it. Works with and without root. A second run does only what changed. Exit code 3: something is missing (one line says what).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

echo "[1/4] environment (.venv, .deps)"
bash tools/bootstrap.sh
echo "[2/4] build"
bash tools/install.sh build/wheel
echo "[3/4] demo model"
model=$(.venv/bin/python tools/fetch_demo_model.py | tail -n 1)
echo "[4/4] generate"
source tools/gpu.sh
find_gpus
device=cpu
[ -z "$gpu_architectures" ] || device=cuda
.venv/bin/python tools/demo.py --model "$model" --device "$device" "$@"
cat << END

Next:
  .venv/bin/fastspec-cli generate --model $model --device $device --prompt "Once upon a time" --drafter ngram
  .venv/bin/python -c 'from fastspec import LLM; print(LLM("$model", drafter="longspec:SmolLM2-135M-Instruct", device="$device").generate("Once upon a time")[0].text)'
END
