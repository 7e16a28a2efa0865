# shellcheck shell=bash
# ./dev wheel: packs the staged package, its shared objects and headers into dist/ (WHEEL_DIST: elsewhere).

run_wheel() {
  local work="$BUILD/wheel" dist="${WHEEL_DIST:-$WEFT_ROOT/dist}"
  rm -rf "$work"
  mkdir -p "$work" "$dist"
  # The build's run paths name this machine's venv; the wheel finds torch as its neighbour.
  # libweft_gloo.so needs no run path: Gloo is Debian's, or absent and done without.
  install -m 755 "$SITE/weft"/*.so "$work/"
  local object
  for object in "$work"/*.so; do
    # shellcheck disable=SC2016  # $ORIGIN is the loader's, not the shell's
    [[ "$object" == */libweft_gloo.so ]] || patchelf --set-rpath '$ORIGIN:$ORIGIN/../torch/lib' "$object"
  done
  strip --strip-unneeded "$work"/*.so
  "$PY" -I "$WEFT_ROOT/tools/make_wheel.py" "$WEFT_ROOT" "$work" "$dist" "$TORCH_VERSION"
}
