// What a callback throws, as a value: for the places where an exception must go no further. They
// are C callbacks, threads of this library, and handlers of an application.
#pragma once

#include <cxxabi.h>

#include <exception>
#include <new>
#include <optional>
#include <string>
#include <utility>

namespace weft::transport {

// Runs `callback`. Nothing: it returned. Else what it threw, in words.
template <typename Callback>
[[nodiscard]] std::optional<std::string> thrownBy(Callback&& callback) {
  try {
    std::forward<Callback>(callback)();
    return std::nullopt;
  } catch (const abi::__forced_unwind&) {
    throw;  // pthread_exit(): the thread ends, and nothing may stop that
  } catch (const std::exception& error) {
    try {
      return error.what();
    } catch (const std::bad_alloc&) {
      return "bad_alloc";  // short enough to need no memory
    }
  } catch (...) {
    return "not an error";
  }
}

}  // namespace weft::transport
