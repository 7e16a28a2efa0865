// Sending and receiving as a test wants it: by value, and waited for.
#pragma once

#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "c10d_plugin/core/mailbox.h"
#include "tests/c10d_plugin/net/world.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

inline OwnedBuffer bufferOf(std::size_t size, unsigned seed = 0) {
  const std::shared_ptr<std::byte[]> memory(new std::byte[size]);
  for (std::size_t i = 0; i < size; ++i)
    memory[i] = static_cast<std::byte>((i * 31 + i / 251 + seed) & 0xFF);
  return {memory.get(), size, memory};
}

inline bool equal(const OwnedBuffer& a, const OwnedBuffer& b) {
  return a.size == b.size && (a.size == 0 || std::memcmp(a.data, b.data, a.size) == 0);
}

inline std::future<Error> sending(Mailbox& mailbox, int to, Tag tag, OwnedBuffer data,
                                  const Label& label = {}, Mailbox::Ticket* ticket = nullptr) {
  const auto promise = std::make_shared<std::promise<Error>>();
  const Mailbox::Ticket given = mailbox.send(
      to, tag, std::move(data), [promise](const Error& error) { promise->set_value(error); },
      label);
  if (ticket != nullptr) *ticket = given;
  return promise->get_future();
}

inline std::future<Mailbox::Received> receiving(Mailbox& mailbox, int from, Tag tag,
                                                const OwnedBuffer& into, const Label& label = {},
                                                Mailbox::Ticket* ticket = nullptr) {
  const auto promise = std::make_shared<std::promise<Mailbox::Received>>();
  const Mailbox::Ticket given = mailbox.receive(
      from, tag, into,
      [promise](const Mailbox::Received& received) { promise->set_value(received); }, label);
  if (ticket != nullptr) *ticket = given;
  return promise->get_future();
}

// Throws when it takes too long: the test ends, rather than hang.
template <typename T>
T await(std::future<T> future, std::chrono::milliseconds patience = kPatience) {
  if (future.wait_for(patience) != std::future_status::ready)
    throw std::runtime_error("a completion did not come");
  return future.get();
}

template <typename T>
bool isReady(std::future<T>& future) {
  return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

inline void expectOk(const Error& error) { EXPECT_FALSE(error) << error.text(); }

inline bool names(const Error& error, const std::string& text) {
  return error.text().find(text) != std::string::npos;
}

}  // namespace weft::collectives
