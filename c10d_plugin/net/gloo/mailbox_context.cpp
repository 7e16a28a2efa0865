#include "c10d_plugin/net/gloo/mailbox_context.h"

#include <gloo/transport/address.h>

namespace weft::collectives {
namespace {

// Gloo numbers the messages of one operation in the lowest byte of a slot; the rest says which
// operation, which the requests' tags and labels say better.
unsigned stepOf(std::uint64_t slot) { return static_cast<unsigned>(slot & 0xFF); }

class NoAddress final : public gloo::transport::Address {
 public:
  std::string str() const override { return "weft"; }
  std::vector<char> bytes() const override { return {}; }
};

// There only because Gloo asks whether two ranks are connected; they are, through the mailbox.
class MailboxPair final : public gloo::transport::Pair {
 public:
  const gloo::transport::Address& address() const override { return address_; }
  void connect(const std::vector<char>&) override {}
  void close() override {}
  void setSync(bool, bool) override {}
  std::unique_ptr<gloo::transport::Buffer> createSendBuffer(int, void*, std::size_t) override {
    throw std::logic_error("Weft's transport for Gloo has unbound buffers only");
  }
  std::unique_ptr<gloo::transport::Buffer> createRecvBuffer(int, void*, std::size_t) override {
    throw std::logic_error("Weft's transport for Gloo has unbound buffers only");
  }
  void send(gloo::transport::UnboundBuffer*, std::uint64_t, std::size_t, std::size_t) override {
    throw std::logic_error("Weft's transport for Gloo sends by rank");
  }
  void recv(gloo::transport::UnboundBuffer*, std::uint64_t, std::size_t, std::size_t) override {
    throw std::logic_error("Weft's transport for Gloo receives by rank");
  }

 private:
  NoAddress address_;
};

class MailboxTransport final : public gloo::transport::Context {
 public:
  MailboxTransport(int own_rank, int ranks, CurrentRequests& current)
      : Context(own_rank, ranks), current_(current) {
    pairs_.resize(static_cast<std::size_t>(ranks));
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != own_rank) createPair(peer);
  }

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    std::unique_ptr<gloo::transport::Pair>& pair = pairs_[static_cast<std::size_t>(peer)];
    pair = std::make_unique<MailboxPair>();
    return pair;
  }
  std::unique_ptr<gloo::transport::UnboundBuffer> createUnboundBuffer(void* data,
                                                                      std::size_t bytes) override {
    return std::make_unique<MailboxBuffer>(data, bytes, current_);
  }

 private:
  CurrentRequests& current_;
};

}  // namespace

MailboxBuffer::~MailboxBuffer() {
  for (std::deque<Begun>* begun : {&sent_, &received_}) {
    for (const Begun& one : *begun) {
      if (requests_.wait(one.request)) continue;
      (void)!requests_.finish();
      return;
    }
  }
}

Bytes MailboxBuffer::range(std::size_t offset, std::size_t bytes) const {
  if (bytes == kUnspecifiedByteCount) bytes = size - offset;
  return {static_cast<std::byte*>(ptr) + offset, bytes};
}

void MailboxBuffer::send(int to, std::uint64_t slot, std::size_t offset, std::size_t bytes) {
  sent_.push_back({requests_.send(to, stepOf(slot), range(offset, bytes)), to});
}

void MailboxBuffer::recv(int from, std::uint64_t slot, std::size_t offset, std::size_t bytes) {
  received_.push_back({requests_.receive(from, stepOf(slot), range(offset, bytes)), from});
}

void MailboxBuffer::recv(std::vector<int> from, std::uint64_t slot, std::size_t offset,
                         std::size_t bytes) {
  if (from.size() != 1)
    throw std::logic_error("Weft's transport for Gloo receives from one rank at a time");
  recv(from[0], slot, offset, bytes);
}

bool MailboxBuffer::wait(std::deque<Begun>& begun, int* rank) {
  if (begun.empty()) throw std::logic_error("Gloo waits for a message that was not begun");
  const Begun one = begun.front();
  begun.pop_front();
  if (!requests_.wait(one.request)) {
    (void)!requests_.finish();
    throw RequestsFailed();
  }
  if (rank != nullptr) *rank = one.peer;
  return true;
}

bool MailboxBuffer::waitRecv(int* rank, std::chrono::milliseconds) { return wait(received_, rank); }

bool MailboxBuffer::waitSend(int* rank, std::chrono::milliseconds) { return wait(sent_, rank); }

MailboxContext::MailboxContext(int own_rank, int ranks, CurrentRequests& current)
    : Context(own_rank, ranks) {
  transportContext_ = std::make_shared<MailboxTransport>(own_rank, ranks, current);
}

}  // namespace weft::collectives
