// libFuzzer: what authenticated ranks may send to a mailbox, in any order, while its own rank
// sends, receives, cancels and aborts. A message's bytes may break off and begin again as another
// message. Each request completes once, no byte is written to memory whose receive is over, and the
// peer's unexpected messages stay within their window.
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "tests/c10d_plugin/fake_mailbox.h"
#include "tests/support/fuzz_input.h"

namespace weft::collectives {

using testing::FuzzInput;
using testing::require;
using transport::Disposition;
using transport::Error;
using transport::ErrorCode;
using transport::OwnedBuffer;

constexpr int kRanks = FakeEndpoint::kRanks;
constexpr std::uint64_t kWindow = 4096;

class MailboxFuzz {
 public:
  explicit MailboxFuzz(FuzzInput& input) : input_(input) {}

  void run() {
    for (int i = 0; i < 100 && !input_.empty(); ++i) {
      step();
      settle();
    }
    box_->close(std::chrono::milliseconds(0));
    endpoint_->kept.clear();
    for (const auto& [ticket, done] : completed_)
      require(done == 1);
  }

 private:
  // A message of a peer between its header and its end.
  struct Arriving {
    std::vector<std::byte> header;
    std::vector<OwnedBuffer> buffers;
  };

  Label label() { return {{input_.oneIn(8) ? 1U : 0U, 0, 0}}; }
  std::uint64_t size() {
    return input_.oneIn(8) ? input_.number<std::uint16_t>() : input_.below(3) * 8;
  }
  int peer() { return 1 + static_cast<int>(input_.below(2)); }

  void step() {
    switch (input_.below(12)) {
      case 0:
      case 1:
        return receive();
      case 2:
        return send();
      case 3:
        return cancel(input_.below(32) + 1);
      case 4:
        endpoint_->kept.clear();  // acknowledged
        return;
      case 5:
        if (!input_.oneIn(4)) return;
        return lose(peer(),
                    {input_.oneIn(2) ? ErrorCode::kPeerClosed : ErrorCode::kPeerLost, "lost"});
      case 6:
        if (input_.oneIn(8)) box_->abort({ErrorCode::kTimeout, "aborted"});
        return;
      case 7:
        return finish(peer());
      default:
        return announce(peer());
    }
  }

  void receive() {
    const int from = input_.oneIn(4) ? kAnyRank : static_cast<int>(input_.below(kRanks));
    const std::uint64_t bytes = size();
    // Freed as soon as its receive is over: nobody may write to it then.
    const auto memory = std::make_shared<std::unique_ptr<std::byte[]>>(new std::byte[bytes + 1]);
    const int number = next_++;
    completed_[number] = 0;
    const Mailbox::Ticket ticket = box_->receive(
        from, input_.below(3), {memory->get(), bytes, nullptr},
        [this, number, memory](const Mailbox::Received&) {
          require(++completed_[number] == 1);
          memory->reset();
        },
        label());
    by_ticket_[ticket] = number;
  }

  void send() {
    const std::uint64_t bytes = size();
    const std::shared_ptr<std::byte[]> memory(new std::byte[bytes + 1]());
    const int number = next_++;
    completed_[number] = 0;
    const Mailbox::Ticket ticket = box_->send(
        static_cast<int>(input_.below(kRanks)), input_.below(3), {memory.get(), bytes, memory},
        [this, number](const Error&) { require(++completed_[number] == 1); }, label());
    if (ticket != 0) by_ticket_[ticket] = number;
  }

  void cancel(Mailbox::Ticket ticket) {
    if (!box_->cancel(ticket, {ErrorCode::kTimeout, "cancelled"})) return;
    // Its completion does not run.
    const auto number = by_ticket_.extract(ticket);
    require(!number.empty() && completed_[number.mapped()] == 0);
    completed_.erase(number.mapped());
  }

  // A header comes; also in the place of one whose bytes did not come whole.
  void announce(int from) {
    if (endpoint_->gone[from]) return;
    Arriving next;
    std::vector<std::uint64_t> sizes;
    const auto before = arriving_.find(from);
    if (before != arriving_.end() && !input_.oneIn(4)) {
      next.header = before->second.header;
      for (const OwnedBuffer& buffer : before->second.buffers)
        sizes.push_back(buffer.size);
    } else if (input_.oneIn(16)) {
      const auto some = input_.bytes(input_.number());
      next.header.assign(some.begin(), some.end());
      sizes.assign(input_.below(3), input_.below(32));
    } else {
      MailHeader header;
      header.kind = static_cast<MailKind>(input_.below(10));
      header.tag = input_.below(3);
      header.id = input_.below(16);
      header.size = input_.oneIn(4) ? input_.number<std::uint64_t>() : size();
      header.label = label();
      const bool has_text =
          header.kind == MailKind::kAbort || header.kind == MailKind::kSendCancelled;
      if (has_text) header.text = input_.text(input_.below(8));
      next.header = encode(header);
      const bool has_bytes =
          header.kind == MailKind::kEager || header.kind == MailKind::kRendezvous;
      if (has_bytes != input_.oneIn(32)) sizes.push_back(size());
    }
    next.buffers.resize(sizes.size());
    // What lies in memory that the two share is here already.
    for (std::size_t i = 0; i < sizes.size() && input_.oneIn(8); ++i) {
      const std::shared_ptr<std::byte[]> shared(new std::byte[sizes[i] + 1]());
      next.buffers[i] = {shared.get(), sizes[i], shared};
    }
    const Disposition wanted = ask(from, next, sizes);
    arriving_.erase(from);
    if (wanted == Disposition::kRefuse) return lose(from, {ErrorCode::kProtocol, "malformed"});
    if (wanted == Disposition::kDiscard) return;
    arriving_.emplace(from, std::move(next));
    if (input_.oneIn(2)) finish(from);
  }

  Disposition ask(int from, Arriving& next, const std::vector<std::uint64_t>& sizes) {
    transport::EndpointHandler& handler = box_.handler();
    try {
      const Disposition wanted = handler.onHeader(from, next.header, sizes, next.buffers);
      for (std::size_t i = 0; i < sizes.size() && wanted == Disposition::kAccept; ++i)
        require(next.buffers[i].size == sizes[i] &&
                (sizes[i] == 0 || next.buffers[i].data != nullptr));
      return wanted;
    } catch (const std::length_error&) {
      return Disposition::kRefuse;  // more than the window
    }
  }

  // The bytes come, and the message is whole.
  void finish(int from) {
    auto whole = arriving_.extract(from);
    if (whole.empty()) return;
    for (const OwnedBuffer& buffer : whole.mapped().buffers)
      std::fill_n(buffer.data, buffer.size, std::byte{7});
    transport::EndpointHandler& handler = box_.handler();
    handler.onMessage(from, whole.mapped().header, std::move(whole.mapped().buffers));
  }

  void lose(int rank, Error reason) {
    if (std::exchange(endpoint_->gone[rank], true)) return;
    arriving_.erase(rank);
    transport::EndpointHandler& handler = box_.handler();
    handler.onPeerLost({rank, "worker", std::move(reason)});
  }

  // What the mailbox asked of its endpoint.
  void settle() {
    while (!endpoint_->lost.empty() || !endpoint_->tasks.empty()) {
      for (const auto& [rank, reason] : std::exchange(endpoint_->lost, {}))
        lose(rank, reason);
      for (const auto& task : std::exchange(endpoint_->tasks, {}))
        task();
    }
  }

  FuzzInput& input_;
  std::map<int, int> completed_;  // by request: how often
  FakeMailbox box_{kWindow};
  FakeEndpoint* const endpoint_ = &box_.endpoint();
  std::map<Mailbox::Ticket, int> by_ticket_;
  std::map<int, Arriving> arriving_;
  int next_ = 0;
};

}  // namespace weft::collectives

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::testing::FuzzInput input(data, size);
  weft::collectives::MailboxFuzz(input).run();
  return 0;
}
