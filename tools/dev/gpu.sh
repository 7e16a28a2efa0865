# shellcheck shell=bash
# ./dev gpu: the CUDA tests and benchmarks on this machine's GPU. ./dev gpu-bundle: an archive that
# runs them on a machine that has a GPU, Python 3.12 and torch, and no network.

GPU_PYTHON=3.12
GPU_BUNDLE_LIMIT=$((60 << 20))
# What the tests need beside torch, as in PIP_PACKAGES.
GPU_PACKAGES=(numpy pytest pytest-timeout expecttest parameterized hypothesis)

run_gpu() {
  need_build
  (cd "$WEFT_ROOT" && env "${WEFT_ENV[@]}" "PYTHONPATH=$SITE:$WEFT_ROOT" bash tools/gpu/run.sh "$@")
}

# From a clone, so that the archive is a commit's and this checkout's build stays as it is.
run_gpu_bundle() {
  local work="$BUILD/gpu-bundle" python archive="$WEFT_ROOT/dist/weft-gpu.tar.gz" bytes
  python="$(python_of "$GPU_PYTHON")" || die "gpu-bundle needs Python $GPU_PYTHON"
  rm -rf "$work"
  mkdir -p "$work/weft-gpu" "$(dirname "$archive")"
  git -C "$WEFT_ROOT" -c safe.directory='*' archive HEAD bench tests/conftest.py tests/support \
    tests/cuda tests/c10d_plugin tests/pipe tests/rpc tests/conformance pyproject.toml tools/gpu |
    tar -x -C "$work/weft-gpu"
  git clone --quiet --shared "$WEFT_ROOT" "$work/source"
  WEFT_BASE_PYTHON="$python" WHEEL_DIST="$work/weft-gpu" "$work/source/dev" wheel
  "$CACHE/venv-$TORCH_VERSION-py$GPU_PYTHON/bin/python" -m pip install --quiet --no-compile \
    --disable-pip-version-check --only-binary :all: --target "$work/weft-gpu/site" \
    "${GPU_PACKAGES[@]}" >&2 </dev/null
  ln -s tools/gpu/run.sh "$work/weft-gpu/run"
  tar -czf "$archive" -C "$work" weft-gpu
  bytes="$(stat -c %s "$archive")"
  [[ "$bytes" -le "$GPU_BUNDLE_LIMIT" ]] || die "$archive has $bytes bytes, more than $GPU_BUNDLE_LIMIT"
  say "gpu-bundle: $archive, $((bytes >> 20)) MiB; there: tar xf weft-gpu.tar.gz && weft-gpu/run"
}
