// What the callbacks that libuv makes have in common: EventLoop's, Poll's and Timer's.
#pragma once

#include <uv.h>

#include <string>
#include <utility>

#include "transport/base/log.h"
#include "transport/base/thrown.h"

namespace weft::transport {

// The one way from libuv into C++: an exception must not unwind through C, nor end the thread that
// serves every peer. False: `callback` threw, and the log says what.
template <typename Callback>
bool runGuarded(const char* what, Callback&& callback) {
  const auto thrown = thrownBy(std::forward<Callback>(callback));
  if (!thrown) return true;
  static_cast<void>(thrownBy([&] {
    log(LogLevel::kError, std::string(what) + " of the transport's thread threw: " + *thrown);
  }));
  return false;
}

// Closes the handle of a state whose `handle.data` is the state itself. Its callback may be running
// now, so the state lives until libuv has closed the handle.
template <typename State>
void closeThenDelete(State* state) {
  uv_close(reinterpret_cast<uv_handle_t*>(&state->handle),
           [](uv_handle_t* handle) { delete static_cast<State*>(handle->data); });
}

}  // namespace weft::transport
