# shellcheck shell=bash
# ./dev doctor: says what is there, what is missing, and what would fix it. Changes nothing.

doctor_line() {
  local ok="$1" what="$2" detail="$3"
  printf '%-4s %-12s %s\n' "$ok" "$what" "$detail"
}

run_doctor() {
  local missing status=0 base
  mapfile -t missing < <(apt_missing "${APT_BUILD[@]}" "${APT_TEST[@]}")
  if [[ ${#missing[@]} == 0 ]]; then
    doctor_line ok packages "all Debian packages"
  else
    doctor_line MISS packages "${missing[*]}"
    status=1
  fi
  base="$(base_python 2>/dev/null)" || base=""
  if [[ -n "$base" ]]; then
    find_venv
    doctor_line ok python "$base"
    if "$PY" -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)' 2>/dev/null; then
      doctor_line ok venv "$VENV ($("$PY" -c 'from importlib.metadata import version as v; print("torch", v("torch"))'))"
    else
      doctor_line MISS venv "$VENV has no torch"
      status=1
    fi
  else
    doctor_line MISS python "3.10 or newer"
    status=1
  fi
  if [[ -f "$LIBUV_SRC/include/uv.h" ]]; then
    doctor_line ok libuv "$LIBUV_SRC"
  else
    doctor_line MISS libuv "$LIBUV_SRC"
    status=1
  fi
  if [[ -f "$SITE/weft/_C.so" ]]; then
    doctor_line ok build "$SITE"
  else
    doctor_line -- build "not built yet; ./dev build"
  fi
  if [[ $status == 0 ]] && has_cuda; then
    doctor_line ok cuda "torch has it: libweft_cuda.so is built too; nvcc is not needed"
  else
    doctor_line -- cuda "this torch has none: libweft_cuda.so is left out"
  fi
  doctor_line -- cores "$(nproc); $(awk '/MemAvailable/ { printf "%.1f GiB free", $2 / 1048576 }' /proc/meminfo)"
  doctor_line -- disk "$(df -h --output=avail "$(dirname "$CACHE")" 2>/dev/null | tail -1 | tr -d ' ') free for $CACHE"
  [[ $status == 0 ]] || printf 'This command fixes what is missing:  ./dev setup\n'
  if [[ $status == 0 && -f "$SITE/weft/_C.so" ]]; then
    find_venv
    (cd "$WEFT_ROOT" && limited 120 env "${WEFT_ENV[@]}" python -m weft.doctor) || status=1
  fi
  return "$status"
}
