# shellcheck shell=bash
# Fetches libuv's Debian source package into the cache. Why from source: see third_party/libuv.

LIBUV_VERSION=1.44.2
LIBUV_SRC="${WEFT_LIBUV_SRC:-$CACHE/libuv-$LIBUV_VERSION}"

libuv_fetch() {
  local work apt
  work="$(mktemp -d)"
  # apt drops to the user _apt for downloads; it must be able to enter the folder.
  chmod 755 "$work"
  private_apt "$work/apt" deb-src
  "${apt[@]}" update || die "apt could not read the source package lists"
  (cd "$work" && "${apt[@]}" source libuv1 >/dev/null) || die "apt-get source libuv1 failed"
  local unpacked=("$work"/libuv1-*/)
  [[ -f "${unpacked[0]}/include/uv.h" ]] || die "the libuv1 source package has no include/uv.h"
  rm -rf "$LIBUV_SRC"
  mkdir -p "$(dirname "$LIBUV_SRC")"
  mv "${unpacked[0]}" "$LIBUV_SRC"
  rm -rf "$work"
}

need_libuv() {
  [[ -f "$LIBUV_SRC/include/uv.h" ]] && return
  say "libuv: fetching its Debian source package into $LIBUV_SRC"
  libuv_fetch
}
