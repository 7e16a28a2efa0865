# shellcheck shell=bash disable=SC2034  # the lists are for the other parts
# The Debian packages, each with what it is for. A command asks for those that it needs, so that a
# machine that has them needs no root for anything.

APT_BUILD=(
  bazel-bootstrap bazel-platforms bazel-skylib bazel-rules-java bazel-rules-proto # the build
  g++ dpkg-dev                                                                    # compile, unpack libuv
  libssl-dev libgloo-dev libisal-dev                                              # third_party/
  python3 python3-venv python3-dev                                                # the interpreter
  git ca-certificates procps                                                      # what the scripts call
)
APT_TEST=(
  googletest libbenchmark-dev                                   # third_party/, for tests
  clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev     # lint and fuzz
  shellcheck                                                    # lint
  cmake make                                                    # find_package(weft) is tested
)

# dpkg answers in milliseconds, so that no stamp is needed and nothing can be stale.
apt_missing() {
  local package
  for package in "$@"; do
    # dpkg-query prints nothing and fails for a package it has never heard of.
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
      printf '%s\n' "$package"
  done
}

# need_apt PACKAGES…: apt's own words go to a file, which is shown if it fails.
need_apt() {
  command -v dpkg-query >/dev/null || die "this machine has no dpkg; Weft builds on Debian 12"
  local missing log="$CACHE/apt.log"
  mapfile -t missing < <(apt_missing "$@")
  [[ ${#missing[@]} == 0 ]] && return
  say "apt: installing ${missing[*]}"
  mkdir -p "$CACHE"
  # A subshell: as_root may end it, and its words are in the file then.
  (
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
      as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 \
        --no-install-recommends install "${missing[@]}"
  ) </dev/null >"$log" 2>&1 || {
    tail -n 20 "$log" >&2
    die "apt could not install them (all it said: $log)"
  }
}

# private_apt FOLDER TYPE [OPTIONS…]: sets `apt` to apt-get with lists of its own in FOLDER, of the
# machine's own sources as TYPE (deb or deb-src): no mirror is named here, and the machine's setup
# stays as it is.
private_apt() {
  local to="$1" type="$2" file
  mkdir -p "$to/parts" "$to/lists/partial"
  : >"$to/sources.list"
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
    [[ -r "$file" ]] || continue
    sed -nE "s/^[[:space:]]*deb([[:space:]])/$type\\1/p" "$file" >>"$to/sources.list"
  done
  for file in /etc/apt/sources.list.d/*.sources; do
    [[ -r "$file" ]] || continue
    sed -E "s/^Types:.*/Types: $type/I" "$file" >"$to/parts/$(basename "$file")"
  done
  apt=(
    apt-get -qq
    -o "Dir::Etc::SourceList=$to/sources.list"
    -o "Dir::Etc::SourceParts=$to/parts"
    -o "Dir::State::Lists=$to/lists"
    -o "Dir::Cache::pkgcache=" -o "Dir::Cache::srcpkgcache="
    -o "APT::Sandbox::User=$(id -un)"
    -o "Acquire::Retries=3"
    "${@:3}"
  )
}
