# shellcheck shell=bash disable=SC2034,SC2153  # what other parts read, or set
# ./dev wheel --aarch64: a wheel for aarch64, made on another machine and tried there under QEMU's
# user mode, with torch's own aarch64 wheel. It is for Debian 12's Python 3.11.

AARCH64_VENV="$AARCH64/venv-$TORCH_VERSION"
AARCH64_PY="$AARCH64_VENV/bin/python"

# Written by hand: `python -m venv` would link an interpreter that this machine cannot execute. Here
# it is a script, so that its own children, such as sys.executable, run under QEMU as well.
aarch64_make_venv() {
  local bin="$AARCH64_ROOT/usr/bin"
  mkdir -p "$AARCH64_VENV/bin" "$AARCH64_VENV/lib/python3.11/site-packages"
  printf 'home = %s\nversion = 3.11\n' "$bin" >"$AARCH64_VENV/pyvenv.cfg"
  # shellcheck disable=SC2016  # $0 and $@ are the script's
  printf '#!/bin/sh\nexec qemu-aarch64 -L "%s" -0 "$0" "%s" "$@"\n' \
    "$AARCH64_ROOT" "$bin/python3.11" >"$AARCH64_PY"
  chmod +x "$AARCH64_PY"
}

# pip of this machine, for that one: each manylinux tag by name, since it guesses none.
need_aarch64_venv() {
  stamped "$AARCH64_VENV/.weft-stamp" "${TORCH_PACKAGES[*]}" && return
  local glibc tags=(--platform manylinux2014_aarch64)
  for glibc in {17..36}; do tags+=(--platform "manylinux_2_${glibc}_aarch64"); done
  say "aarch64: installing torch $TORCH_VERSION into $AARCH64_VENV (3 GB, minutes)"
  rm -rf "$AARCH64_VENV"
  aarch64_make_venv
  "$PY" -m pip install --quiet --disable-pip-version-check --retries 5 --only-binary=:all: \
    --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none "${tags[@]}" \
    --target "$AARCH64_VENV/lib/python3.11/site-packages" "${TORCH_PACKAGES[@]}" >&2
  stamp "$AARCH64_VENV/.weft-stamp" "${TORCH_PACKAGES[*]}"
}

# Leaves the shared objects in SITE. Another torch, so another output base than the tests' one.
aarch64_build() {
  local bin
  local targets=("${BUILD_TARGETS[@]}" //:libweft_cuda.so)
  local flags=("${AARCH64_BAZEL[@]}" "--repo_env=WEFT_PYTHON=$AARCH64_PY")
  say "build: Weft for aarch64 against torch $TORCH_VERSION"
  bazel_run build "${flags[@]}" "${targets[@]}" >&2
  bin="$(bazel_bin "${flags[@]}")"
  place_targets "$bin" "${targets[@]}"
}

# In a venv beside torch's, whose packages it takes: nothing of the checkout is in reach.
aarch64_try_wheel() {
  local fresh="$BUILD/wheel-venv" packages="lib/python3.11/site-packages"
  rm -rf "$fresh"
  mkdir -p "$fresh"
  cp -al "$AARCH64_VENV/." "$fresh/" 2>/dev/null || cp -a "$AARCH64_VENV/." "$fresh/"
  "$PY" -m zipfile -e "$WHEEL" "$fresh/$packages"
  try_wheel_in "$fresh" 1800
}

aarch64_wheel() {
  need_all "${AARCH64_APT[@]}"
  with_cache_lock need_aarch64
  with_cache_lock need_aarch64_venv
  BUILD="$BUILD-aarch64" SITE="$BUILD-aarch64/site"
  local usr="$AARCH64_ROOT/usr/lib" lib="$AARCH64_ROOT/lib/aarch64-linux-gnu"
  WHEEL_PYTHON="$AARCH64_PY" WHEEL_STRIP=aarch64-linux-gnu-strip WHEEL_ROOT="$AARCH64_ROOT"
  WHEEL_REPAIR=(--ldpaths "$usr:$usr/aarch64-linux-gnu:$lib")
  BAZEL_FLAVOUR=-aarch64-torch aarch64_build
  run_wheel
  aarch64_try_wheel
}
