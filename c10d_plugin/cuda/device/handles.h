// Plain structures as words of a Meeting.
#pragma once

#include <cstring>
#include <type_traits>

#include "c10d_plugin/cuda/device/meeting.h"

namespace weft::process_group {

template <typename Plain>
inline constexpr std::size_t kWordsOf = (sizeof(Plain) + sizeof(std::int64_t) - 1) /
                                        sizeof(std::int64_t);

template <typename Plain>
Words asWords(const Plain& plain) {
  static_assert(std::is_trivially_copyable_v<Plain>);
  Words words(kWordsOf<Plain>);
  std::memcpy(words.data(), &plain, sizeof(Plain));
  return words;
}

template <typename Plain>
Plain fromWords(const Words& words) {
  static_assert(std::is_trivially_copyable_v<Plain>);
  Plain plain{};
  TORCH_CHECK(words.size() == kWordsOf<Plain>, "weft: a malformed record of another rank");
  std::memcpy(static_cast<void*>(&plain), words.data(), sizeof(Plain));
  return plain;
}

}  // namespace weft::process_group
