# shellcheck shell=bash
# What every part of ./dev shares: places, versions, the voice, stamps. Sourced, never run.
# Only `need_*` functions change the machine; sourcing this file changes nothing.

WEFT_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
CACHE="${WEFT_CACHE:-$HOME/.cache/weft}"
TORCH_VERSION="${WEFT_TORCH:-2.11.0}"
# Everything that a build leaves in the checkout lies here, one folder per torch (and, for wheels of
# other Pythons, one for each).
BUILD="$WEFT_ROOT/build/torch-$TORCH_VERSION${WHEEL_BUILD_SUFFIX:-}"
# shellcheck disable=SC2034  # used by the other parts
SITE="$BUILD/site"

# One line per step on stderr, so that stdout stays the command's own.
say() { printf '[weft] %s\n' "$*" >&2; }
die() {
  printf '[weft] error: %s\n' "$*" >&2
  exit 1
}

# no_more COMMAND ARGUMENTS…: a command that takes none says so, and does not pass over them.
no_more() { [[ $# == 1 ]] || die "./dev $1 takes no arguments, got: ${*:2} (./dev help)"; }

hash_of() { sha256sum | cut -c1-16; }

# `stamped NAME KEY` is true when step NAME last succeeded with the same KEY. `stamp` records it.
# Stamps live beside what they vouch for, so that deleting the thing deletes the claim.
stamped() { [[ -f "$1" && "$(<"$1")" == "$2" ]]; }
stamp() {
  mkdir -p "$(dirname "$1")"
  printf '%s\n' "$2" >"$1"
}

# Root does without sudo; anybody else needs it, and is told so rather than left with a raw error.
as_root() {
  if [[ "$(id -u)" == 0 ]]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    die "this needs root, and there is no sudo: run as root once: $*"
  fi
}

# Runs a function in a shell of its own that stops at its first failing command; STEP_RC is its
# status. A plain call, never `if step f` or `step f || …`: bash switches errexit off for
# everything below a condition, and the function would run on past its failures.
step() {
  set +e
  (
    set -e
    "$@"
  )
  # shellcheck disable=SC2034  # its callers read it
  STEP_RC=$?
  set -e
}

# A lock per cache: two ./dev at once must not install into the same venv. Held by file
# descriptor 9 until the function's subshell ends. Waits at most 40 minutes (a slow torch download).
with_cache_lock() {
  mkdir -p "$CACHE"
  (
    flock -w 2400 9 || die "another ./dev holds $CACHE/lock for too long"
    "$@"
  ) 9>"$CACHE/lock"
}
