// FetchInBackground: while one lives, the fetches of this thread do not wait in
// RequestClient::send(). Others do: torch's to_here() would wait for the future right after, and
// not notice Ctrl-C.
//
// Threads: the one that made it.
#pragma once

#include <utility>

namespace weft::rpc {

class FetchInBackground {
 public:
  FetchInBackground() noexcept : outer_(std::exchange(t_active, true)) {}
  ~FetchInBackground() { t_active = outer_; }
  FetchInBackground(const FetchInBackground&) = delete;
  FetchInBackground& operator=(const FetchInBackground&) = delete;

  static bool active() noexcept { return t_active; }

 private:
  static inline thread_local bool t_active = false;
  const bool outer_;
};

}  // namespace weft::rpc
