#include "c10d_plugin/net/hosts/hierarchical_collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/net/messages/message_collectives.h"

namespace weft::collectives {
namespace {

// From here on, all_reduce goes in shares.
constexpr std::size_t kShareBytes = std::size_t{64} << 10;
// From here on, broadcast goes down a tree of all ranks where each host has two: its pieces are
// read, passed on and copied at the same time, which saves more than shared memory does. (From
// kShareBytes on where the root would have to hand it to its leader first.)
constexpr std::size_t kTreeBytes = std::size_t{4} << 20;
// Ranks that wait for their leader let its error come first: it knows who is missing.
constexpr std::chrono::milliseconds kLeaderFirst{300};

std::unique_ptr<std::byte[]> memory(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

void copy(Bytes to, ConstBytes from) {
  if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
}

}  // namespace

HierarchicalCollectives::HierarchicalCollectives(HostLayout layout, Parts parts)
    : layout_(std::move(layout)), parts_(std::move(parts)) {}

// --- how steps run and fail ---

bool HierarchicalCollectives::endedBy(const Error& error) {
  if (!error) return false;
  abort(error);
  return true;
}

Error HierarchicalCollectives::ended() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_;
}

void HierarchicalCollectives::abort(Error reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error_) return;
    error_ = reason;
  }
  parts_.inside->abort(reason);
  parts_.mailbox->abort(reason);
}

bool HierarchicalCollectives::inside(const Call& call, const Step& step) {
  Call local = call;
  local.sequence = inside_sequence_++;
  if (!leads()) local.deadline += kLeaderFirst;
  const Error error = step(*parts_.inside, local);
  if (!error) return true;
  std::string whom;
  for (std::size_t i = 0; i < layout_.here().size(); ++i)
    whom +=
        (i == 0 ? "" : ", ") + std::to_string(i) + " is rank " + std::to_string(layout_.here()[i]);
  endedBy({error.code(), error.text() + " (numbered on this host: " + whom + ")"});
  return false;
}

bool HierarchicalCollectives::across(const Call& call, const Step& step) {
  Call between = call;
  between.sequence = across_sequence_++;
  return !endedBy(step(*parts_.across, between));
}

Call HierarchicalCollectives::sums(const Call& call) const {
  Call partial = call;
  if (call.reduction == Reduction::kAverage) partial.reduction = Reduction::kSum;
  return partial;
}

void HierarchicalCollectives::divide(const Call& call, Bytes data) const {
  if (call.reduction == Reduction::kAverage)
    divideBy(call.element, data.data(), data.size() / sizeOf(call.element), parts_.mailbox->size());
}

// --- operations ---

Error HierarchicalCollectives::barrier(const Call& call) {
  if (Error error = ended()) return error;
  const Step meet = [](Collectives& part, const Call& own) { return part.barrier(own); };
  (void)(inside(call, meet) && (!leads() || across(call, meet)) && inside(call, meet));
  return ended();
}

Error HierarchicalCollectives::broadcast(const Call& call, Bytes data, int root) {
  if (Error error = ended()) return error;
  const bool at_leader = layout_.localOf(root) == 0;
  if (data.size() >= (at_leader ? kTreeBytes : kShareBytes) && treeKeepsToHosts(root)) {
    Error error = parts_.flat->broadcast(call, data, root);
    (void)endedBy(error);
    return error;
  }
  broadcastByLeaders(call, data, root);
  return ended();
}

// A binomial tree of the ranks crosses to each other host once.
bool HierarchicalCollectives::treeKeepsToHosts(int root) const {
  const bool full = std::has_single_bit(layout_.hosts.size());
  if (size() > MessageCollectives::kFewRanks || layout_.fewest() != 2 || layout_.most() != 2 ||
      (!full && root % 2 != 0))
    return false;
  return std::all_of(layout_.hosts.begin(), layout_.hosts.end(), [](const std::vector<int>& host) {
    return host[0] % 2 == 0 && host[1] == host[0] + 1;
  });
}

void HierarchicalCollectives::broadcastByLeaders(const Call& call, Bytes data, int root) {
  const int host = layout_.hostOf(root);
  const auto from = [&](int local) {
    return [data, local](Collectives& part, const Call& own) {
      return part.broadcast(own, data, local);
    };
  };
  const int local = layout_.host == host ? layout_.localOf(root) : 0;
  // Where the leader has the data already the other hosts get them first, which takes longest.
  const bool at_leader = layout_.host != host || local == 0;
  if (!at_leader && !inside(call, from(local))) return;
  if (leads() && !across(call, from(host))) return;
  if (at_leader) (void)inside(call, from(local));
}

Error HierarchicalCollectives::allReduce(const Call& call, Bytes data) {
  if (Error error = ended()) return error;
  if (!canReduce(call.element, call.reduction)) return parts_.flat->allReduce(call, data);
  if (layout_.fewest() > 1 && data.size() >= kShareBytes) {
    allReduceByShares(call, data);
  } else {
    allReduceByLeaders(call, data);
  }
  return ended();
}

void HierarchicalCollectives::allReduceByLeaders(const Call& call, Bytes data) {
  const Call sum = sums(call);
  if (!inside(sum, [&](Collectives& part, const Call& own) { return part.reduce(own, data, 0); }))
    return;
  if (leads()) {
    if (!across(sum, [&](Collectives& part, const Call& own) { return part.allReduce(own, data); }))
      return;
    divide(call, data);
  }
  (void)inside(call,
               [&](Collectives& part, const Call& own) { return part.broadcast(own, data, 0); });
}

void HierarchicalCollectives::allReduceByShares(const Call& call, Bytes data) {
  const Call sum = sums(call);
  // The first fewest() ranks of each host have a share, the others an empty one.
  const auto sharers = static_cast<std::size_t>(layout_.fewest());
  const std::size_t element = sizeOf(call.element);
  const std::size_t each = (data.size() / element + sharers - 1) / sharers * element;
  std::vector<Bytes> shares;
  for (std::size_t i = 0; i < layout_.here().size(); ++i) {
    const std::size_t from = i < sharers ? std::min(i * each, data.size()) : data.size();
    shares.push_back(data.subspan(from, i < sharers ? std::min(each, data.size() - from) : 0));
  }
  const Bytes own_share = shares[static_cast<std::size_t>(layout_.local)];
  const std::vector<ConstBytes> inputs(shares.begin(), shares.end());
  if (!inside(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, inputs, own_share);
      }))
    return;
  if (layout_.local < layout_.fewest()) {
    if (!across(sum,
                [&](Collectives& part, const Call& own) { return part.allReduce(own, own_share); }))
      return;
    divide(call, own_share);
  }
  (void)inside(call, [&](Collectives& part, const Call& own) {
    return part.allGather(own, own_share, shares);
  });
}

Error HierarchicalCollectives::reduce(const Call& call, Bytes data, int root) {
  if (Error error = ended()) return error;
  if (!canReduce(call.element, call.reduction)) return parts_.flat->reduce(call, data, root);
  const Call sum = sums(call);
  const bool is_root = layout_.rank == root;
  // Only the root's data may change.
  std::unique_ptr<std::byte[]> scratch;
  Bytes work = data;
  if (leads() && !is_root) {
    scratch = memory(data.size());
    work = {scratch.get(), data.size()};
    copy(work, data);
  }
  if (!inside(sum, [&](Collectives& part, const Call& own) { return part.reduce(own, work, 0); }))
    return ended();
  const int host = layout_.hostOf(root);
  if (leads() && !across(sum, [&](Collectives& part, const Call& own) {
        return part.reduce(own, work, host);
      }))
    return ended();
  const int local = layout_.localOf(root);
  if (layout_.host == host && local != 0) {
    // From the leader to the root; the others get nothing.
    std::vector<ConstBytes> to(layout_.here().size(), ConstBytes());
    to[static_cast<std::size_t>(local)] = work;
    const bool moved = inside(call, [&](Collectives& part, const Call& own) {
      return part.scatter(own,
                          leads() ? std::span<const ConstBytes>(to) : std::span<const ConstBytes>(),
                          is_root ? data : Bytes(), 0);
    });
    if (!moved) return ended();
  }
  if (is_root) divide(call, data);
  return ended();
}

Error HierarchicalCollectives::allGather(const Call& call, ConstBytes in,
                                         std::span<const Bytes> out) {
  if (Error error = ended()) return error;
  if (out.size() != static_cast<std::size_t>(size())) return parts_.flat->allGather(call, in, out);
  // Everything, host by host.
  std::vector<Bytes> places(out.size());
  std::vector<Bytes> blocks;
  std::size_t total = 0;
  bool in_place = true;
  for (const std::vector<int>& ranks : layout_.hosts) {
    for (const int r : ranks) {
      const Bytes part = out[static_cast<std::size_t>(r)];
      in_place = in_place &&
                 (part.empty() ||
                  part.data() == out[static_cast<std::size_t>(layout_.hosts[0][0])].data() + total);
      total += part.size();
    }
  }
  std::unique_ptr<std::byte[]> scratch;
  Bytes all(out[static_cast<std::size_t>(layout_.hosts[0][0])].data(), total);
  if (!in_place) {
    scratch = memory(total);
    all = {scratch.get(), total};
  }
  std::size_t at = 0;
  for (const std::vector<int>& ranks : layout_.hosts) {
    const std::size_t begin = at;
    for (const int r : ranks) {
      const auto index = static_cast<std::size_t>(r);
      places[index] = all.subspan(at, out[index].size());
      at += out[index].size();
    }
    blocks.push_back(all.subspan(begin, at - begin));
  }
  std::vector<Bytes> local;
  for (const int r : layout_.here())
    local.push_back(places[static_cast<std::size_t>(r)]);
  const Bytes own_block = blocks[static_cast<std::size_t>(layout_.host)];
  const auto collect = [&](Collectives& part, const Call& own) {
    return part.gather(own, in, leads() ? std::span<const Bytes>(local) : std::span<const Bytes>(),
                       0);
  };
  const auto exchange = [&](Collectives& part, const Call& own) {
    return part.allGather(own, own_block, blocks);
  };
  const auto spread = [&](Collectives& part, const Call& own) {
    return part.broadcast(own, all, 0);
  };
  if (!inside(call, collect) || (leads() && !across(call, exchange)) || !inside(call, spread))
    return ended();
  for (std::size_t r = 0; r < out.size() && !in_place; ++r)
    copy(out[r], places[r]);
  return ended();
}

Error HierarchicalCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in,
                                             Bytes out) {
  if (Error error = ended()) return error;
  const bool even = layout_.fewest() == layout_.most();
  if (!even || !canReduce(call.element, call.reduction) ||
      in.size() != static_cast<std::size_t>(size())) {
    Error error = parts_.flat->reduceScatter(call, in, out);
    if (error.code() != ErrorCode::kInvalidArgument) (void)endedBy(error);
    return error;
  }
  const Call sum = sums(call);
  // By the receiver's index on its host: what goes to that index on every host, side by side.
  std::size_t total = 0;
  for (const ConstBytes& part : in)
    total += part.size();
  const auto packed = memory(total);
  std::vector<ConstBytes> by_index;
  std::size_t at = 0;
  for (int index = 0; index < layout_.fewest(); ++index) {
    const std::size_t begin = at;
    for (const int r : layout_.across(index)) {
      const ConstBytes part = in[static_cast<std::size_t>(r)];
      copy({packed.get() + at, part.size()}, part);
      at += part.size();
    }
    by_index.emplace_back(packed.get() + begin, at - begin);
  }
  const ConstBytes mine = by_index[static_cast<std::size_t>(layout_.local)];
  const Bytes reduced(const_cast<std::byte*>(mine.data()), mine.size());
  std::vector<ConstBytes> by_host;
  std::size_t offset = 0;
  for (const int r : layout_.across(layout_.local)) {
    by_host.push_back(mine.subspan(offset, in[static_cast<std::size_t>(r)].size()));
    offset += by_host.back().size();
  }
  const bool done =
      inside(sum, [&](Collectives& part,
                      const Call& own) { return part.reduceScatter(own, by_index, reduced); }) &&
      across(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, by_host, out);
      });
  if (done) divide(call, out);
  return ended();
}

// --- from rank to rank ---

Error HierarchicalCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                                      int root) {
  if (Error error = ended()) return error;
  Error error = parts_.flat->gather(call, in, out, root);
  (void)endedBy(error);
  return error;
}

Error HierarchicalCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                                       int root) {
  if (Error error = ended()) return error;
  Error error = parts_.flat->scatter(call, in, out, root);
  (void)endedBy(error);
  return error;
}

Error HierarchicalCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                                        std::span<const Bytes> out) {
  if (Error error = ended()) return error;
  Error error = parts_.flat->allToAll(call, in, out);
  (void)endedBy(error);
  return error;
}

}  // namespace weft::collectives
