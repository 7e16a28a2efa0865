# shellcheck shell=bash
# ./dev wheel: packs the staged package, its shared objects and headers into dist/ (WHEEL_DIST: elsewhere).

run_wheel() {
  local work="$BUILD/wheel" dist="${WHEEL_DIST:-$WEFT_ROOT/dist}"
  rm -rf "$work"
  mkdir -p "$work" "$dist"
  # The build's run paths name this machine's venv; the wheel finds torch as its neighbour.
  # libweft_gloo.so needs no run path: Gloo is Debian's, or absent and done without.
  install -m 755 "$SITE/weft/libweft.so" "$SITE/weft/libweft_gloo.so" "$SITE/weft/_C.so" "$work/"
  # shellcheck disable=SC2016  # $ORIGIN is the loader's, not the shell's
  patchelf --set-rpath '$ORIGIN:$ORIGIN/../torch/lib' "$work/libweft.so" "$work/_C.so"
  strip --strip-unneeded "$work/libweft.so" "$work/libweft_gloo.so" "$work/_C.so"
  "$PY" -I "$WEFT_ROOT/tools/make_wheel.py" "$WEFT_ROOT" "$work" "$dist" "$TORCH_VERSION"
}
