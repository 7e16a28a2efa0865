#!/usr/bin/env bash
# Mixed groups, as the examples show them: two C++ processes and a Python one that call each other,
# then a C++ actor of a Python learner, then the saved models that one of each makes and runs, then a
# model of collectives on a rank of each, then a transformer on two C++ workers behind HTTP.
#
# mixed_test.sh INFERENCE_FOLDER ACTOR SAVED_MODEL COLLECTIVES_WORKER EXAMPLES: places in the runfiles.
set -euo pipefail

root="$PWD"
# The interpreter of the torch that the programs are linked with.
torch="$(ldd "$root/$1/client" | sed -n 's/.*libtorch_cpu.so => \(.*\) (.*/\1/p')"
site="$(cd "$(dirname "$torch")/../.." && pwd -P)"
python="$site/../../../bin/python"
[[ -x "$python" ]] || { echo "no Python beside $site"; exit 1; }

# An importable package: the checkout's files with the shared objects built for this test.
mkdir -p "$TEST_TMPDIR/site/weft"
ln -sf "$root"/weft/* "$TEST_TMPDIR/site/weft/"
ln -sf "$root/_C.so" "$root/libweft.so" "$TEST_TMPDIR/site/weft/"
export PYTHONPATH="$TEST_TMPDIR/site:$root" PYTHONSAFEPATH=1 TORCH_DEVICE_BACKEND_AUTOLOAD=0
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

port() { echo $((20000 + RANDOM % 10000)); }

"$python" -m examples.cpp_inference.launch --binaries "$root/$1" --threads 3 --requests 100 |
  tee "$TEST_TMPDIR/inference.txt"
grep -q 'C++ client, 3 threads: p50' "$TEST_TMPDIR/inference.txt"
grep -q 'Python client, 3 threads: p50' "$TEST_TMPDIR/inference.txt"

MASTER_PORT="$(port)"
export MASTER_ADDR=127.0.0.1 MASTER_PORT WORLD_SIZE=2
RANK=0 timeout 100 "$python" -m examples.cpp_trainer.learner &
learner=$!
RANK=1 timeout 100 "$root/$2" 60
wait "$learner"

# A model that calls, made and saved by Python, loaded and run by C++ against a Python server.
MASTER_PORT="$(port)"
export MASTER_PORT
RANK=0 timeout 100 "$python" "$root/tests/jit_ops/saved_model.py" "$TEST_TMPDIR/client.pt" &
server=$!
RANK=1 timeout 100 "$root/$3" "$TEST_TMPDIR/client.pt"
wait "$server"

# One model with collectives on a Python rank and on a C++ rank.
MASTER_PORT="$(port)"
export MASTER_PORT
"$python" -m examples.cpp_collectives.model "$TEST_TMPDIR/standardised.pt"
RANK=0 timeout 100 "$python" -m examples.cpp_collectives.worker "$TEST_TMPDIR/standardised.pt" >"$TEST_TMPDIR/rank0" &
rank0=$!
RANK=1 timeout 100 "$root/$4" "$TEST_TMPDIR/standardised.pt" | tee "$TEST_TMPDIR/rank1"
wait "$rank0"
cat "$TEST_TMPDIR/rank0"
grep -q "Python rank 0 of 2: rows from .* everybody's add up to 0.000" "$TEST_TMPDIR/rank0"
grep -q "C++ rank 1 of 2: rows from .* everybody's add up to 0.000" "$TEST_TMPDIR/rank1"

# An HTTP client gets as many letters as it asks for, from two halves of a model.
"$python" -m examples.text_generation.launch --binaries "$root/$5" --steps 5 --count 20 --prompt 'Citizen:' |
  tee "$TEST_TMPDIR/text.txt"
grep -q 'wrote first.pt, second.pt and front.pt' "$TEST_TMPDIR/text.txt"
# The prompt and 20 letters, of which some may be ends of lines; python adds one.
[[ "$(sed '0,/^loss /d' "$TEST_TMPDIR/text.txt" | wc -c)" == $((8 + 20 + 1)) ]]
