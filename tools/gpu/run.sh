#!/usr/bin/env bash
# Runs Weft's CUDA tests and benchmarks on the GPU of this machine, and writes what they print and
# find to RESULTS (default: gpu-results). In a checkout ./dev gpu calls it; in the archive of
# ./dev gpu-bundle it unpacks the wheel that lies beside it. It asks for nothing from a network.
set -uo pipefail

cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." || exit 1
results="$(realpath -m "${RESULTS:-gpu-results}")"
mkdir -p "$results"
if compgen -G 'weft-*.whl' >/dev/null; then
  python3 -m zipfile -e weft-*.whl site || exit 1
  export PYTHONPATH="$PWD/site:$PWD"
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-4}"

python3 - <<'PY' || exit 1
import torch
if not torch.cuda.is_available():
    raise SystemExit("PyTorch sees no CUDA device here")
import weft
for device in range(torch.cuda.device_count()):
    print(f"{torch.cuda.get_device_name(device)}; torch {torch.__version__}; weft {weft.__version__}")
PY

status=0
timeout "${TESTS_LIMIT:-900}" python3 -m pytest -q -p no:cacheprovider tests/cuda \
  tests/c10d_plugin/test_devices.py 2>&1 | tee "$results/tests.txt" || status=1
timeout "${BENCH_LIMIT:-900}" python3 -m bench.cuda --out "$results" "$@" 2>&1 |
  tee "$results/bench.txt" || status=1
timeout "${SUITES_LIMIT:-900}" python3 tests/conformance/run.py --jobs 4 --suite cuda \
  --suite AgentRpcTest --only '[Cc]uda' 2>&1 | tee "$results/suites.txt" || status=1
if command -v compute-sanitizer >/dev/null; then
  some='awaited_on_their_streams or many_sizes or overwritten or distributed_autograd'
  some+=' or through_host_memory or (equals_the_plain_model and turn)'
  timeout "${SANITIZER_LIMIT:-600}" compute-sanitizer --error-exitcode 9 --target-processes all \
    python3 -m pytest -q -p no:cacheprovider tests/cuda/test_rpc.py tests/cuda/test_pipe.py \
    -k "$some" 2>&1 |
    tee "$results/compute-sanitizer.txt" || status=1
fi
exit "$status"
