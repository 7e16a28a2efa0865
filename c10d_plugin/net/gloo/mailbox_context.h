// gloo::transport on a Mailbox. Gloo's algorithms need unbound buffers of a transport; pairs are
// only counted.
//
// One operation runs at a time; its RequestSet has the deadline, the check between ranks and the
// reason of a failure. A wait of Gloo's that fails throws RequestsFailed, once no message touches
// any memory, so that Gloo may unwind.
#pragma once

#include <gloo/context.h>
#include <gloo/transport/context.h>

#include <deque>
#include <stdexcept>
#include <vector>

#include "c10d_plugin/net/messages/request_set.h"

namespace weft::collectives {

struct RequestsFailed : std::runtime_error {
  RequestsFailed() : std::runtime_error("the requests of this operation have failed") {}
};

// The RequestSet of the running operation, which its buffers use.
struct CurrentRequests {
  RequestSet* requests = nullptr;
};

class MailboxBuffer final : public gloo::transport::UnboundBuffer {
 public:
  MailboxBuffer(void* data, std::size_t bytes, CurrentRequests& current)
      : UnboundBuffer(data, bytes), requests_(*current.requests) {}
  ~MailboxBuffer() override;

  using UnboundBuffer::waitRecv;
  using UnboundBuffer::waitSend;
  // In the order in which they were begun. The timeout is the RequestSet's.
  bool waitRecv(int* rank, std::chrono::milliseconds timeout) override;
  bool waitSend(int* rank, std::chrono::milliseconds timeout) override;
  void abortWaitRecv() override {}
  void abortWaitSend() override {}
  void send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;
  void recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) override;
  void recv(std::vector<int> from, std::uint64_t slot, std::size_t offset,
            std::size_t bytes) override;

 private:
  struct Begun {
    RequestSet::Request* request;
    int peer;
  };
  Bytes range(std::size_t offset, std::size_t bytes) const;
  bool wait(std::deque<Begun>& begun, int* rank);

  RequestSet& requests_;
  std::deque<Begun> sent_;
  std::deque<Begun> received_;
};

// A gloo::Context that needs no rendezvous: the mailbox's ranks have met already.
class MailboxContext final : public gloo::Context {
 public:
  MailboxContext(int own_rank, int ranks, CurrentRequests& current);
};

}  // namespace weft::collectives
