#include "c10d_plugin/net/hosts/hierarchical_collectives.h"

#include <algorithm>

#include "c10d_plugin/core/pieces.h"
#include "c10d_plugin/core/reduce_kernels.h"

namespace weft::collectives {
namespace {

// From this size on, data are reduced in shares.
constexpr std::size_t kShareBytes = std::size_t{64} << 10;
// From this size on, broadcast goes down a tree of all ranks if each host has two. Pieces are read,
// passed on and copied at the same time, which saves more than shared memory does.
constexpr std::size_t kTreeBytes = std::size_t{4} << 20;

std::unique_ptr<std::byte[]> memory(std::size_t bytes) {
  return std::make_unique_for_overwrite<std::byte[]>(bytes);
}

// The Call of a step in between: an average is a sum until the end.
Call partialCall(Call call) {
  call.reduction = partialReduction(call.reduction);
  return call;
}

// The sum of a host's ranks may not fit the type, although the average of all does.
bool needsAllRanks(const Call& call) {
  return call.reduction == Reduction::kAverage && !sumsFit(call.element);
}

// By rank; empty for those after the sharers.
std::vector<Bytes> cut(Bytes data, std::size_t element, std::size_t sharers, std::size_t ranks) {
  const std::size_t each = (data.size() / element + sharers - 1) / sharers * element;
  std::vector<Bytes> shares;
  for (std::size_t i = 0; i < ranks; ++i)
    shares.push_back(pieceOf(data, i, each));
  return shares;
}

// The parts of these ranks.
template <typename Part>
std::vector<Part> pick(std::span<const Part> parts, const std::vector<int>& ranks) {
  std::vector<Part> picked;
  picked.reserve(ranks.size());
  for (const int one : ranks)
    picked.push_back(parts[static_cast<std::size_t>(one)]);
  return picked;
}

}  // namespace

Error HierarchicalCollectives::barrier(const Call& call) {
  const HierarchySteps::Step meet = [](Collectives& part, const Call& own) {
    return part.barrier(own);
  };
  (void)(steps_.begin(call, Operation::kBarrier, 0) && steps_.inside(call, meet) &&
         (layout().local != 0 || steps_.across(call, meet)) && steps_.inside(call, meet));
  return steps_.failure();
}

Error HierarchicalCollectives::broadcast(const Call& call, Bytes data, int root) {
  if (Error error = steps_.failure()) return error;
  if (data.size() >= kTreeBytes && layout().treeKeepsToHosts(root))
    return steps_.endedBy(steps_.flat().broadcast(call, data, root));
  if (!steps_.begin(call, Operation::kBroadcast, data.size(), root)) return steps_.failure();
  const auto from = [&](int one) -> HierarchySteps::Step {
    return
        [data, one](Collectives& part, const Call& own) { return part.broadcast(own, data, one); };
  };
  const int host = layout().hostOf(root);
  const int local = layout().localOf(root);
  // If some host has no rank of the root's index, the hosts' first ranks get the data first.
  const bool crosses = local < layout().fewest();
  const int index = crosses ? local : 0;
  if (!crosses && layout().host == host && !steps_.inside(call, from(local)))
    return steps_.failure();
  if (layout().local == index && !steps_.across(call, from(host), local)) return steps_.failure();
  if (crosses || layout().host != host) (void)steps_.inside(call, from(index), index);
  return steps_.failure();
}

Error HierarchicalCollectives::allReduce(const Call& call, Bytes data) {
  if (!canReduce(call.element, call.reduction)) return steps_.flat().allReduce(call, data);
  if (needsAllRanks(call)) return steps_.endedBy(steps_.flat().allReduce(call, data));
  return reduceTo(call, data, kEverywhere);
}

Error HierarchicalCollectives::reduce(const Call& call, Bytes data, int root) {
  if (!canReduce(call.element, call.reduction)) return steps_.flat().reduce(call, data, root);
  if (needsAllRanks(call)) return steps_.endedBy(steps_.flat().reduce(call, data, root));
  return reduceTo(call, data, root);
}

Error HierarchicalCollectives::reduceTo(const Call& call, Bytes data, int root) {
  const Operation operation = root == kEverywhere ? Operation::kAllReduce : Operation::kReduce;
  if (!steps_.begin(call, operation, data.size(), root)) return steps_.failure();
  const Call sum = partialCall(call);
  const auto sharers = static_cast<std::size_t>(data.size() < kShareBytes ? 1 : layout().fewest());
  std::vector<Bytes> shares = cut(data, sizeOf(call.element), sharers, layout().here().size());
  const std::vector<ConstBytes> inputs(shares.begin(), shares.end());
  // Only ranks that want the result may change their data.
  Bytes own_share = shares[static_cast<std::size_t>(layout().local)];
  std::unique_ptr<std::byte[]> scratch;
  if (root != kEverywhere && root != rank()) {
    scratch = memory(own_share.size());
    own_share = {scratch.get(), own_share.size()};
  }
  if (!steps_.inside(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, inputs, own_share);
      }))
    return steps_.failure();
  if (layout().local < static_cast<int>(sharers)) {
    if (!steps_.across(
            sum,
            [&](Collectives& part, const Call& own) {
              return root == kEverywhere ? part.allReduce(own, own_share)
                                         : part.reduce(own, own_share, layout().hostOf(root));
            },
            root == kEverywhere ? 0 : layout().localOf(root), sharers))
      return steps_.failure();
    finishReduction(call, own_share, size());
  }
  if (root == kEverywhere) {
    (void)steps_.inside(call, [&](Collectives& part, const Call& own) {
      return part.allGather(own, own_share, shares);
    });
  } else if (layout().host == layout().hostOf(root)) {
    if (rank() != root) shares.clear();
    (void)steps_.inside(call, [&](Collectives& part, const Call& own) {
      return part.gather(own, own_share, shares, layout().localOf(root));
    });
  }
  return steps_.failure();
}

bool HierarchicalCollectives::gatherInside(const Call& call, std::size_t host, ConstBytes in,
                                           std::span<const Bytes> out) {
  const std::vector<Bytes> places = pick(out, layout().hosts[host]);
  return steps_.inside(
      call, [&](Collectives& part, const Call& own) { return part.allGather(own, in, places); });
}

Error HierarchicalCollectives::allGather(const Call& call, ConstBytes in,
                                         std::span<const Bytes> out) {
  if (Error error = steps_.failure()) return error;
  if (layout().fewest() != layout().most() || out.size() != static_cast<std::size_t>(size()))
    return steps_.endedBy(steps_.flat().allGather(call, in, out));
  if (!steps_.begin(call, Operation::kAllGather, in.size())) return steps_.failure();
  const std::vector<Bytes> mine = pick(out, layout().across(layout().local));  // by host
  // This host's parts first, which finds out who is missing here.
  const auto here = static_cast<std::size_t>(layout().host);
  if (!gatherInside(call, here, in, out) ||
      !steps_.across(call, [&](Collectives& part, const Call& own) {
        return part.allGather(own, mine[here], mine);
      }))
    return steps_.failure();
  for (std::size_t host = 0; host < mine.size(); ++host)
    if (host != here && !gatherInside(call, host, mine[host], out)) break;
  return steps_.failure();
}

Error HierarchicalCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in,
                                             Bytes out) {
  if (Error error = steps_.failure()) return error;
  if (!canReduce(call.element, call.reduction)) return steps_.flat().reduceScatter(call, in, out);
  const bool uneven =
      layout().fewest() != layout().most() || in.size() != static_cast<std::size_t>(size());
  if (uneven || needsAllRanks(call))
    return steps_.endedBy(steps_.flat().reduceScatter(call, in, out));
  if (!steps_.begin(call, Operation::kReduceScatter, out.size())) return steps_.failure();
  const Call sum = partialCall(call);
  std::size_t total = 0;
  for (const ConstBytes& part : pick(in, layout().across(layout().local)))
    total += part.size();
  const std::unique_ptr<std::byte[]> sums = memory(total);
  std::vector<ConstBytes> by_host;  // this host's sums for the ranks with this rank's index
  std::byte* at = sums.get();
  for (const std::vector<int>& ranks : layout().hosts) {
    const std::vector<ConstBytes> parts = pick(in, ranks);
    const Bytes reduced(at, parts[static_cast<std::size_t>(layout().local)].size());
    if (!steps_.inside(sum, [&](Collectives& part, const Call& own) {
          return part.reduceScatter(own, parts, reduced);
        }))
      return steps_.failure();
    by_host.emplace_back(reduced);
    at += reduced.size();
  }
  if (steps_.across(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, by_host, out);
      }))
    finishReduction(call, out, size());
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
