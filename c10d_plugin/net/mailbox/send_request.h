// SendRequest: a message on its way out. Its completion runs when the last owner of its bytes
// releases it: the mailbox while the message is only announced, then the endpoint.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

struct MailboxState;

// A message of up to so many bytes is kept as a copy until it is acknowledged; it counts as sent
// once it is written, which a peer that then leaves in order does not change.
inline constexpr std::size_t kCopied = std::size_t{32} << 10;

struct SendRequest {
  SendRequest(MailboxState& mailbox, int receiver, transport::OwnedBuffer bytes,
              Mailbox::OnSent on_sent)
      : state(mailbox), to(receiver), data(std::move(bytes)), done(std::move(on_sent)) {}
  ~SendRequest();
  SendRequest(const SendRequest&) = delete;
  SendRequest& operator=(const SendRequest&) = delete;

  MailboxState& state;
  const int to;
  transport::OwnedBuffer data;
  Mailbox::OnSent done;
  transport::Error error;
  bool transmitted = false;  // given to the endpoint
};

}  // namespace weft::collectives
