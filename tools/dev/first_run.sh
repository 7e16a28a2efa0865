# shellcheck shell=bash
# Says before anything begins how long a first run takes and how much disk, if something is missing.

# What the steps take: minutes of waiting for the network, minutes of one core, GB.
FIRST_APT=(2 0 1)
FIRST_VENV=(3 0 6)
FIRST_BUILD=(0 16 2)

free_gb() { df -BG --output=avail "$1" 2>/dev/null | tail -1 | tr -dc 0-9; }

announce_first_run() {
  local minutes=0 gb=0 steps=() place="$CACHE" free
  add() {
    steps+=("$1")
    minutes=$((minutes + $2 + ($3 + $(nproc) - 1) / $(nproc)))
    gb=$((gb + $4))
  }
  find_venv
  [[ -z "$(apt_missing "${APT_BUILD[@]}")" ]] || add "Debian packages" "${FIRST_APT[@]}"
  [[ -x "$PY" ]] || add "torch $TORCH_VERSION" "${FIRST_VENV[@]}"
  [[ -f "$SITE/weft/_C.so" || -d "$BAZEL_USER_ROOT/disk" ]] || add "compiling" "${FIRST_BUILD[@]}"
  [[ ${#steps[@]} == 0 ]] && return
  until [[ -d "$place" ]]; do place="$(dirname "$place")"; done
  free="$(free_gb "$place")"
  say "first run: about $minutes minutes on $(nproc) cores and ${gb} GB of disk in $CACHE" \
    "($free GB free): $(printf '%s, ' "${steps[@]}" | sed 's/, $//')"
  [[ -z "$free" || "$free" -ge "$gb" ]] ||
    die "not enough disk for $CACHE; WEFT_CACHE=FOLDER puts it elsewhere"
}
