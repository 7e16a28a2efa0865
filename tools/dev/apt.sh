# shellcheck shell=bash
# The Debian packages, each with what it is for.

APT_PACKAGES=(
  bazel-bootstrap bazel-platforms bazel-skylib bazel-rules-java bazel-rules-proto # the build
  g++ dpkg-dev patchelf                                                          # compile, unpack libuv, wheel
  libssl-dev googletest libbenchmark-dev libgloo-dev                             # third_party/
  clang-14 clang-format-14 clang-tidy-14 libclang-rt-14-dev shellcheck           # lint and fuzz
  cmake make                                                                     # find_package(weft) is tested
  python3 python3-venv python3-dev                                               # the interpreter
  git ca-certificates procps                                                     # what the scripts call
)

# dpkg answers in milliseconds, so that no stamp is needed and nothing can be stale.
apt_missing() {
  local package
  for package in "${APT_PACKAGES[@]}"; do
    # dpkg-query prints nothing and fails for a package it has never heard of.
    [[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" == installed ]] ||
      printf '%s\n' "$package"
  done
}

need_apt() {
  command -v dpkg-query >/dev/null || die "this machine has no dpkg; Weft builds on Debian 12"
  local missing
  mapfile -t missing < <(apt_missing)
  [[ ${#missing[@]} == 0 ]] && return
  say "apt: installing ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq update
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Acquire::Retries=3 \
    --no-install-recommends install "${missing[@]}" </dev/null >&2
}
