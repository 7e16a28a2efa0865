#include "c10d_plugin/net/hosts/hierarchical_collectives.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "c10d_plugin/core/adjacent_parts.h"
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

std::unique_ptr<std::byte[]> memory(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

void copy(Bytes to, ConstBytes from) {
  if (!to.empty()) std::memcpy(to.data(), from.data(), to.size());
}

}  // namespace

HierarchicalCollectives::HierarchicalCollectives(HostLayout layout, HostSteps::Parts parts)
    : layout_(std::move(layout)), steps_(layout_, std::move(parts)) {}

Call HierarchicalCollectives::sums(const Call& call) const {
  Call partial = call;
  partial.reduction = partialReduction(call.reduction);
  return partial;
}

// --- operations ---

Error HierarchicalCollectives::barrier(const Call& call) {
  if (Error error = steps_.failure()) return error;
  const HostSteps::Step meet = [](Collectives& part, const Call& own) { return part.barrier(own); };
  (void)(steps_.inside(call, meet) && (!leads() || steps_.across(call, meet)) &&
         steps_.inside(call, meet));
  return steps_.failure();
}

Error HierarchicalCollectives::broadcast(const Call& call, Bytes data, int root) {
  if (Error error = steps_.failure()) return error;
  const bool at_leader = layout_.localOf(root) == 0;
  if (data.size() >= (at_leader ? kTreeBytes : kShareBytes) && treeKeepsToHosts(root)) {
    return steps_.endedBy(steps_.flat().broadcast(call, data, root));
  }
  broadcastByLeaders(call, data, root);
  return steps_.failure();
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
  // Where the leader has the data already, the other hosts get them first: that takes longest.
  const bool at_leader = layout_.host != host || local == 0;
  if (!at_leader && !steps_.inside(call, from(local))) return;
  if (leads() && !steps_.across(call, from(host))) return;
  if (at_leader) (void)steps_.inside(call, from(local));
}

Error HierarchicalCollectives::allReduce(const Call& call, Bytes data) {
  if (Error error = steps_.failure()) return error;
  if (!canReduce(call.element, call.reduction)) return steps_.flat().allReduce(call, data);
  if (layout_.fewest() > 1 && data.size() >= kShareBytes) {
    allReduceByShares(call, data);
  } else {
    allReduceByLeaders(call, data);
  }
  return steps_.failure();
}

void HierarchicalCollectives::allReduceByLeaders(const Call& call, Bytes data) {
  const Call sum = sums(call);
  if (!steps_.inside(sum,
                     [&](Collectives& part, const Call& own) { return part.reduce(own, data, 0); }))
    return;
  if (leads()) {
    if (!steps_.across(
            sum, [&](Collectives& part, const Call& own) { return part.allReduce(own, data); }))
      return;
    finishReduction(call, data, size());
  }
  (void)steps_.inside(
      call, [&](Collectives& part, const Call& own) { return part.broadcast(own, data, 0); });
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
  if (!steps_.inside(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, inputs, own_share);
      }))
    return;
  if (layout_.local < layout_.fewest()) {
    if (!steps_.across(sum, [&](Collectives& part, const Call& own) {
          return part.allReduce(own, own_share);
        }))
      return;
    finishReduction(call, own_share, size());
  }
  (void)steps_.inside(call, [&](Collectives& part, const Call& own) {
    return part.allGather(own, own_share, shares);
  });
}

Error HierarchicalCollectives::reduce(const Call& call, Bytes data, int root) {
  if (Error error = steps_.failure()) return error;
  if (!canReduce(call.element, call.reduction)) return steps_.flat().reduce(call, data, root);
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
  if (!steps_.inside(sum,
                     [&](Collectives& part, const Call& own) { return part.reduce(own, work, 0); }))
    return steps_.failure();
  const int host = layout_.hostOf(root);
  if (leads() && !steps_.across(sum, [&](Collectives& part, const Call& own) {
        return part.reduce(own, work, host);
      }))
    return steps_.failure();
  const int local = layout_.localOf(root);
  if (layout_.host == host && local != 0) {
    // From the leader to the root; the other ranks get nothing.
    std::vector<ConstBytes> to(layout_.here().size(), ConstBytes());
    to[static_cast<std::size_t>(local)] = work;
    const bool moved = steps_.inside(call, [&](Collectives& part, const Call& own) {
      return part.scatter(own,
                          leads() ? std::span<const ConstBytes>(to) : std::span<const ConstBytes>(),
                          is_root ? data : Bytes(), 0);
    });
    if (!moved) return steps_.failure();
  }
  if (is_root) finishReduction(call, data, size());
  return steps_.failure();
}

Error HierarchicalCollectives::allGather(const Call& call, ConstBytes in,
                                         std::span<const Bytes> out) {
  if (Error error = steps_.failure()) return error;
  if (out.size() != static_cast<std::size_t>(size())) return steps_.flat().allGather(call, in, out);
  // Everything, host by host.
  std::vector<Bytes> parts;
  for (const std::vector<int>& ranks : layout_.hosts) {
    for (const int r : ranks)
      parts.push_back(out[static_cast<std::size_t>(r)]);
  }
  const AdjacentParts<Bytes> adjacent(parts, AdjacentParts<Bytes>::Use::kWrite);
  const Bytes all = adjacent.all();
  std::vector<Bytes> local;   // the parts of this host's ranks
  std::vector<Bytes> blocks;  // by host
  std::size_t at = 0;
  for (std::size_t host = 0; host < layout_.hosts.size(); ++host) {
    const std::size_t begin = at;
    for (const int r : layout_.hosts[host]) {
      const std::size_t bytes = out[static_cast<std::size_t>(r)].size();
      if (static_cast<int>(host) == layout_.host) local.push_back(all.subspan(at, bytes));
      at += bytes;
    }
    blocks.push_back(all.subspan(begin, at - begin));
  }
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
  if (!steps_.inside(call, collect) || (leads() && !steps_.across(call, exchange)) ||
      !steps_.inside(call, spread))
    return steps_.failure();
  adjacent.copyBack(parts);
  return steps_.failure();
}

Error HierarchicalCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in,
                                             Bytes out) {
  if (Error error = steps_.failure()) return error;
  const bool even = layout_.fewest() == layout_.most();
  if (!even || !canReduce(call.element, call.reduction) ||
      in.size() != static_cast<std::size_t>(size())) {
    Error error = steps_.flat().reduceScatter(call, in, out);
    return error.code() == ErrorCode::kInvalidArgument ? error : steps_.endedBy(error);
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
  const bool done = steps_.inside(sum, [&](Collectives& part, const Call& own) {
    return part.reduceScatter(own, by_index, reduced);
  }) && steps_.across(sum, [&](Collectives& part, const Call& own) {
    return part.reduceScatter(own, by_host, out);
  });
  if (done) finishReduction(call, out, size());
  return steps_.failure();
}

// --- from rank to rank ---

Error HierarchicalCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                                      int root) {
  if (Error error = steps_.failure()) return error;
  return steps_.endedBy(steps_.flat().gather(call, in, out, root));
}

Error HierarchicalCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                                       int root) {
  if (Error error = steps_.failure()) return error;
  return steps_.endedBy(steps_.flat().scatter(call, in, out, root));
}

Error HierarchicalCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                                        std::span<const Bytes> out) {
  if (Error error = steps_.failure()) return error;
  return steps_.endedBy(steps_.flat().allToAll(call, in, out));
}

}  // namespace weft::collectives
