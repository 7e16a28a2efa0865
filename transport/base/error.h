// Errors of the transport are values. Nothing in this layer throws across its
// public interface; the torch edge (rpc_backend/) turns an Error into a c10::Error.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace weft::transport {

enum class ErrorCode : std::uint8_t {
  kOk = 0,
  kInvalidArgument,  // the caller's mistake; nothing changed
  kUnknownPeer,      // no peer of that rank is known here
  kConnectFailed,    // no connection could be made in time
  kDuplicate,        // the peer lives, and has a connection of another process of this rank
  kAuthFailed,       // the peer refuses this process: its key, group, rank, version, a successor
  kProtocol,         // the peer sent bytes that are not the protocol
  kLimitExceeded,    // a length or count above the configured limit
  kPeerClosed,       // the peer said goodbye (it shut down in order)
  kPeerLost,         // the connection broke, or heartbeats stopped
  kTimeout,          // a bounded wait ran out
  kShutdown,         // this endpoint is shutting down
  kSystem,           // a system call failed; the text holds errno's name
  kInterrupted,      // a person's Ctrl-C ended the wait (interruption.h)
};

// A code that another process wrote. One that is unknown, or no failure's, is itself a protocol
// error.
inline ErrorCode errorCodeFrom(std::uint64_t code) {
  const bool known = code > static_cast<std::uint64_t>(ErrorCode::kOk) &&
                     code <= static_cast<std::uint64_t>(ErrorCode::kInterrupted);
  return known ? static_cast<ErrorCode>(code) : ErrorCode::kProtocol;
}

// A code and one sentence that names the peer, the operation, how long, and what
// to do. Cheap to move; copied only on the failure path.
class [[nodiscard]] Error {
 public:
  Error() = default;
  Error(ErrorCode code, std::string text) : code_(code), text_(std::move(text)) {}

  static Error ok() { return {}; }
  explicit operator bool() const noexcept { return code_ != ErrorCode::kOk; }
  ErrorCode code() const noexcept { return code_; }
  const std::string& text() const noexcept { return text_; }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string text_;
};

inline Error invalidArgument(std::string text) {
  return {ErrorCode::kInvalidArgument, std::move(text)};
}
// The text of an error for a resource that is short: memory, descriptors, threads, room, or a
// limit. Programs look for the word, which none of the other errors has.
inline std::string resourceExhausted(const std::string& text) {
  return text + " (RESOURCE_EXHAUSTED)";
}
// The peer sent something that the protocol does not allow.
inline Error protocolError(std::string text) { return {ErrorCode::kProtocol, std::move(text)}; }

// Either a value or an Error.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : state_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const noexcept { return std::holds_alternative<T>(state_); }
  T& value() & { return std::get<T>(state_); }
  const T& value() const& { return std::get<T>(state_); }
  T&& value() && { return std::get<T>(std::move(state_)); }
  const Error& error() const { return std::get<Error>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace weft::transport
