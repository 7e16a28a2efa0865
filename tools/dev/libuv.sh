# shellcheck shell=bash
# Fetches libuv's Debian source package into the cache. Why from source: see third_party/libuv.

LIBUV_VERSION=1.44.2
LIBUV_SRC="${WEFT_LIBUV_SRC:-$CACHE/libuv-$LIBUV_VERSION}"

# Writes a private sources folder: the machine's own sources with `deb` turned into `deb-src`,
# for both of apt's formats, so that no mirror is named here and the machine's setup stays as is.
libuv_private_sources() {
  local to="$1" file name
  mkdir -p "$to/parts" "$to/lists/partial"
  : >"$to/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -r "$file" ]] || continue
    sed -nE 's/^[[:space:]]*deb([[:space:]])/deb-src\1/p' "$file" >>"$to/sources.list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -r "$file" ]] || continue
    name="$(basename "$file")"
    sed -E 's/^Types:.*/Types: deb-src/I' "$file" >"$to/parts/$name"
  done
}

libuv_fetch() {
  local work
  work="$(mktemp -d)"
  # apt drops to the user _apt for downloads; it must be able to enter the folder.
  chmod 755 "$work"
  libuv_private_sources "$work/apt"
  local apt=(
    apt-get -qq
    -o "Dir::Etc::SourceList=$work/apt/sources.list"
    -o "Dir::Etc::SourceParts=$work/apt/parts"
    -o "Dir::State::Lists=$work/apt/lists"
    -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
    -o "APT::Sandbox::User=$(id -un)"
    -o "Acquire::Retries=3"
  )
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
