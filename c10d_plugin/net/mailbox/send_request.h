// SendRequest: a message on its way out. Its completion runs when the last owner of its bytes
// releases it: the mailbox while the message is only announced, then the endpoint.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

struct MailboxState;

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
