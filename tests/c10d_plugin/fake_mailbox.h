// An EndpointMailbox over a FakeEndpoint: rank 0, whose peers are what the test says.
#pragma once

#include <cstdint>
#include <memory>

#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "tests/c10d_plugin/fake_endpoint.h"

namespace weft::collectives {

class FakeMailbox {
 public:
  explicit FakeMailbox(std::uint64_t window) {
    box_->state_.endpoint.reset(endpoint_);
    for (MailboxPeer& peer : box_->state_.peers)
      peer.window = CreditWindow(window);
  }

  EndpointMailbox* operator->() { return box_.get(); }
  FakeEndpoint& endpoint() { return *endpoint_; }
  // What the endpoint tells it.
  transport::EndpointHandler& handler() { return *box_; }

 private:
  std::unique_ptr<EndpointMailbox> box_{new EndpointMailbox(0, FakeEndpoint::kRanks)};
  FakeEndpoint* const endpoint_ = new FakeEndpoint;  // box_'s
};

}  // namespace weft::collectives
