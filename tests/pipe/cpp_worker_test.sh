#!/usr/bin/env bash
# Pipelines of a Python driver on C++ workers: the test's driver, then the example.
#
# cpp_worker_test.sh WORKER: the program's place in the runfiles.
set -euo pipefail

root="$PWD"
# The interpreter of the torch that the program is linked with.
torch="$(ldd "$root/$1" | sed -n 's/.*libtorch_cpu.so => \(.*\) (.*/\1/p')"
site="$(cd "$(dirname "$torch")/../.." && pwd -P)"
python="$site/../../../bin/python"
[[ -x "$python" ]] || { echo "no Python beside $site"; exit 1; }

# An importable package: the checkout's files with the shared objects built for this test.
mkdir -p "$TEST_TMPDIR/site/weft"
ln -sf "$root"/weft/* "$TEST_TMPDIR/site/weft/"
ln -sf "$root/_C.so" "$root/libweft.so" "$TEST_TMPDIR/site/weft/"
export PYTHONPATH="$TEST_TMPDIR/site:$root:$root/tests/pipe:$root/tests/support" PYTHONSAFEPATH=1
export TORCH_DEVICE_BACKEND_AUTOLOAD=0 OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1

timeout 250 "$python" "$root/tests/pipe/cpp_worker_driver.py" "$root/$1"

export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) WORLD_SIZE=3
RANK=1 timeout 100 "$root/$1" worker1 &
RANK=2 timeout 100 "$root/$1" worker2 &
RANK=0 timeout 100 "$python" -m examples.cpp_pipeline_worker.train | tee "$TEST_TMPDIR/said.txt"
wait
# 50% by guessing
tail -1 "$TEST_TMPDIR/said.txt" | awk -F% '{ found = 1; if ($1 < 90) exit 1 } END { if (!found) exit 1 }'
