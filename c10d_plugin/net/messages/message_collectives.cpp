#include "c10d_plugin/net/messages/message_collectives.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "c10d_plugin/core/pieces.h"
#include "c10d_plugin/core/ranks_text.h"

namespace weft::collectives {
namespace {

// Tags of the algorithms: top bit, channel (7 bits), number (40), step (16).
static_assert(kSequenceBits + RequestSet::kTagBits == kChannelShift);

// The piece in which so many bytes are broadcast: an eighth of them.
std::size_t treePiece(std::size_t bytes) {
  return std::clamp(piecesOf(bytes / 8, kPiece) * kPiece, kPiece, kLargePiece);
}

Error unequal(const char* what, std::size_t got, std::size_t wanted) {
  return {ErrorCode::kInvalidArgument, std::string(what) + ": " + std::to_string(got) + " where " +
                                           std::to_string(wanted) + " are needed"};
}

}  // namespace

MessageCollectives::MessageCollectives(std::shared_ptr<Mailbox> mailbox)
    : MessageCollectives(mailbox, allRanks(mailbox->size()), 0) {}

MessageCollectives::MessageCollectives(std::shared_ptr<Mailbox> mailbox, std::vector<int> members,
                                       unsigned channel)
    : mailbox_(std::move(mailbox)), members_(std::move(members)), channel_(channel) {
  rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), mailbox_->rank()) -
                           members_.begin());
}

Tag MessageCollectives::firstTag(unsigned channel, const Call& call) {
  const Tag number = call.turn.value_or(call.sequence) & ((Tag{1} << kSequenceBits) - 1);
  return kCollectiveTags | (Tag{channel} << kChannelShift) | (number << RequestSet::kTagBits);
}

RequestSet MessageCollectives::begin(const Call& call, const OpFingerprint& what) {
  return {*mailbox_, members_, firstTag(channel_, call), what, call.deadline, spin_, wait_times_};
}

std::vector<int> MessageCollectives::awaited() const {
  const std::vector<int> all = mailbox_->awaited();
  std::vector<int> places;
  for (int place = 0; place < size(); ++place) {
    if (std::binary_search(all.begin(), all.end(), members_[static_cast<std::size_t>(place)]))
      places.push_back(place);
  }
  return places;
}

std::byte* MessageCollectives::scratch(std::size_t bytes) {
  constexpr std::size_t kKeep = std::size_t{16} << 20;
  if (scratch_size_ < bytes || scratch_size_ > std::max(bytes, kKeep)) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_size_ = bytes;
  }
  return scratch_.get();
}

Error MessageCollectives::barrier(const Call& call) {
  RequestSet requests = begin(call, Operation::kBarrier, 0);
  unsigned step = 0;
  for (int far = 1; far < size(); far *= 2, ++step) {
    requests.send(after(rank_, far), step, {});
    if (!requests.wait(requests.receive(before(rank_, far), step, {}))) break;
  }
  return requests.finish();
}

Error MessageCollectives::broadcast(const Call& call, Bytes data, int root) {
  RequestSet requests = begin(call, Operation::kBroadcast, data.size(), root);
  // 0 at the root. Where all places of the tree are taken, ranks that share their upper bits stay
  // together whatever the root is, and so do the ranks of a host where those are consecutive.
  const bool full = std::has_single_bit(static_cast<unsigned>(size()));
  const int place = full ? rank_ ^ root : before(rank_, root);
  const auto at = [&](int other) { return full ? other ^ root : after(other, root); };
  int parent_bit = 1;
  while (parent_bit < size() && (place & parent_bit) == 0)
    parent_bit *= 2;
  const std::size_t piece = treePiece(data.size());
  const std::size_t count = std::max<std::size_t>(1, piecesOf(data.size(), piece));
  std::vector<RequestSet::Request*> received;
  for (std::size_t i = 0; i < count && place != 0; ++i)
    received.push_back(requests.receive(at(place - parent_bit), 0, pieceOf(data, i, piece)));
  for (std::size_t i = 0; i < count; ++i) {
    if (place != 0 && !requests.wait(received[i])) break;
    for (int bit = parent_bit / 2; bit > 0; bit /= 2) {
      if (place + bit < size()) requests.send(at(place + bit), 0, pieceOf(data, i, piece));
    }
  }
  return requests.finish();
}

Error MessageCollectives::allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) {
  const auto own = static_cast<std::size_t>(rank_);
  if (out.size() != members_.size()) return unequal("all_gather: outputs", out.size(), size());
  if (out[own].size() != in.size())
    return unequal("all_gather: bytes of the output for this rank's own input", out[own].size(),
                   in.size());
  RequestSet requests = begin(call, Operation::kAllGather);
  for (int k = 1; k < size(); ++k)
    requests.receive(before(rank_, k), 0, out[static_cast<std::size_t>(before(rank_, k))]);
  for (int k = 1; k < size(); ++k)
    requests.send(after(rank_, k), 0, in);
  copyOwn(in, out[own]);
  return requests.finish();
}

Error MessageCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                                 int root) {
  if (rank_ == root && out.size() != members_.size())
    return unequal("gather: outputs", out.size(), size());
  RequestSet requests = begin(call, Operation::kGather, OpFingerprint::kVaries, root);
  if (rank_ != root) {
    requests.send(root, 0, in);
    return requests.finish();
  }
  for (int k = 1; k < size(); ++k)
    requests.receive(after(rank_, k), 0, out[static_cast<std::size_t>(after(rank_, k))]);
  copyOwn(in, out[static_cast<std::size_t>(rank_)]);
  return requests.finish();
}

Error MessageCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                                  int root) {
  if (rank_ == root && in.size() != members_.size())
    return unequal("scatter: inputs", in.size(), size());
  RequestSet requests = begin(call, Operation::kScatter, OpFingerprint::kVaries, root);
  if (rank_ != root) {
    requests.receive(root, 0, out);
    return requests.finish();
  }
  for (int k = 1; k < size(); ++k)
    requests.send(after(rank_, k), 0, in[static_cast<std::size_t>(after(rank_, k))]);
  copyOwn(in[static_cast<std::size_t>(rank_)], out);
  return requests.finish();
}

Error MessageCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                                   std::span<const Bytes> out) {
  if (in.size() != members_.size() || out.size() != members_.size())
    return unequal("all_to_all: inputs or outputs", std::min(in.size(), out.size()), size());
  const auto own = static_cast<std::size_t>(rank_);
  if (in[own].size() != out[own].size())
    return unequal("all_to_all: bytes of the output for this rank's own input", out[own].size(),
                   in[own].size());
  RequestSet requests = begin(call, Operation::kAllToAll);
  for (int k = 1; k < size(); ++k)
    requests.receive(before(rank_, k), 0, out[static_cast<std::size_t>(before(rank_, k))]);
  for (int k = 1; k < size(); ++k)
    requests.send(after(rank_, k), 0, in[static_cast<std::size_t>(after(rank_, k))]);
  copyOwn(in[own], out[own]);
  return requests.finish();
}

}  // namespace weft::collectives
