#include "c10d_plugin/net/messages/message_collectives.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "c10d_plugin/net/messages/request_set.h"

namespace weft::collectives {
namespace {

// Tags of the algorithms: top bit, channel (7 bits), sequence (40), step (16).
constexpr unsigned kStepBits = 16;
constexpr unsigned kSequenceBits = 40;

std::vector<int> everybody(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

void copy(Bytes to, ConstBytes from) {
  if (!to.empty() && to.data() != from.data()) std::memcpy(to.data(), from.data(), to.size());
}

Error unequal(const char* what, std::size_t got, std::size_t wanted) {
  return {ErrorCode::kInvalidArgument, std::string(what) + ": " + std::to_string(got) + " where " +
                                           std::to_string(wanted) + " are needed"};
}

}  // namespace

MessageCollectives::MessageCollectives(std::shared_ptr<Mailbox> mailbox)
    : MessageCollectives(mailbox, everybody(mailbox->size()), 0) {}

MessageCollectives::MessageCollectives(std::shared_ptr<Mailbox> mailbox, std::vector<int> members,
                                       unsigned channel)
    : mailbox_(std::move(mailbox)), members_(std::move(members)), channel_(channel) {
  rank_ = static_cast<int>(std::find(members_.begin(), members_.end(), mailbox_->rank()) -
                           members_.begin());
}

Tag MessageCollectives::base(const Call& call) const {
  return (Tag{1} << 63U) | (Tag{channel_} << (kSequenceBits + kStepBits)) |
         ((call.sequence & ((Tag{1} << kSequenceBits) - 1)) << kStepBits);
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
  RequestSet requests(*mailbox_, members_, base(call),
                      OpFingerprint::of(Operation::kBarrier, call, 0), call.deadline, spin_);
  unsigned step = 0;
  for (int far = 1; far < size(); far *= 2, ++step) {
    requests.send(after(rank_, far), step, {});
    if (!requests.wait(requests.receive(before(rank_, far), step, {}))) break;
  }
  return requests.finish();
}

Error MessageCollectives::broadcast(const Call& call, Bytes data, int root) {
  RequestSet requests(*mailbox_, members_, base(call),
                      OpFingerprint::of(Operation::kBroadcast, call, data.size(), root),
                      call.deadline, spin_);
  broadcastDown(requests, data, root, 0);
  return requests.finish();
}

Error MessageCollectives::allGather(const Call& call, ConstBytes in, std::span<const Bytes> out) {
  const auto own = static_cast<std::size_t>(rank_);
  if (out.size() != members_.size()) return unequal("all_gather: outputs", out.size(), size());
  if (out[own].size() != in.size())
    return unequal("all_gather: bytes of the own output", out[own].size(), in.size());
  RequestSet requests(*mailbox_, members_, base(call),
                      OpFingerprint::of(Operation::kAllGather, call, OpFingerprint::kVaries),
                      call.deadline, spin_);
  for (int k = 1; k < size(); ++k)
    requests.receive(before(rank_, k), 0, out[static_cast<std::size_t>(before(rank_, k))]);
  for (int k = 1; k < size(); ++k)
    requests.send(after(rank_, k), 0, in);
  copy(out[own], in);
  return requests.finish();
}

Error MessageCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                                 int root) {
  if (rank_ == root && out.size() != members_.size())
    return unequal("gather: outputs", out.size(), size());
  RequestSet requests(*mailbox_, members_, base(call),
                      OpFingerprint::of(Operation::kGather, call, OpFingerprint::kVaries, root),
                      call.deadline, spin_);
  if (rank_ != root) {
    requests.send(root, 0, in);
    return requests.finish();
  }
  for (int k = 1; k < size(); ++k)
    requests.receive(after(rank_, k), 0, out[static_cast<std::size_t>(after(rank_, k))]);
  copy(out[static_cast<std::size_t>(rank_)], in);
  return requests.finish();
}

Error MessageCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                                  int root) {
  if (rank_ == root && in.size() != members_.size())
    return unequal("scatter: inputs", in.size(), size());
  RequestSet requests(*mailbox_, members_, base(call),
                      OpFingerprint::of(Operation::kScatter, call, OpFingerprint::kVaries, root),
                      call.deadline, spin_);
  if (rank_ != root) {
    requests.receive(root, 0, out);
    return requests.finish();
  }
  for (int k = 1; k < size(); ++k)
    requests.send(after(rank_, k), 0, in[static_cast<std::size_t>(after(rank_, k))]);
  copy(out, in[static_cast<std::size_t>(rank_)]);
  return requests.finish();
}

Error MessageCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                                   std::span<const Bytes> out) {
  if (in.size() != members_.size() || out.size() != members_.size())
    return unequal("all_to_all: inputs or outputs", std::min(in.size(), out.size()), size());
  RequestSet requests(*mailbox_, members_, base(call),
                      OpFingerprint::of(Operation::kAllToAll, call, OpFingerprint::kVaries),
                      call.deadline, spin_);
  for (int k = 1; k < size(); ++k)
    requests.receive(before(rank_, k), 0, out[static_cast<std::size_t>(before(rank_, k))]);
  for (int k = 1; k < size(); ++k)
    requests.send(after(rank_, k), 0, in[static_cast<std::size_t>(after(rank_, k))]);
  copy(out[static_cast<std::size_t>(rank_)], in[static_cast<std::size_t>(rank_)]);
  return requests.finish();
}

}  // namespace weft::collectives
