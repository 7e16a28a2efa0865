#include "c10d_plugin/net/hosts/hierarchical_collectives.h"

#include <algorithm>
#include <chrono>
#include <set>
#include <string>

#include "c10d_plugin/core/reduce_kernels.h"
#include "c10d_plugin/net/messages/message_collectives.h"

namespace weft::collectives {
namespace {

// From this size on, data are reduced in shares.
constexpr std::size_t kShareBytes = std::size_t{64} << 10;
// From this size on, broadcast goes down a tree of all ranks if each host has two. Pieces are read,
// passed on and copied at the same time, which saves more than shared memory does.
constexpr std::size_t kTreeBytes = std::size_t{4} << 20;
// How much longer the other ranks of a host wait than the one whose error comes first.
constexpr std::chrono::milliseconds kErrorFirst{300};

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

// --- steps and failures ---

bool HierarchicalCollectives::beginSteps(const Call& call, Operation operation, std::uint64_t bytes,
                                         int root) {
  if (failure()) return false;
  const Tag first = MessageCollectives::firstTag(kFlatChannel, call);
  const Label label = OpFingerprint::of(operation, call, bytes, root).label();
  // Over, as far as messages from rank to rank go: it takes none.
  return !flat(parts_.mailbox->reached({first, first + RequestSet::kTags - 1, label, true}));
}

bool HierarchicalCollectives::inside(const Call& call, const Step& step, int first) {
  if (failure()) return false;
  Call local = call;
  local.sequence = inside_sequence_++;
  if (layout_.local != first) local.deadline += kErrorFirst;
  const Error error = step(*parts_.inside, local);
  if (!error) return true;
  abort({error.code(), error.text() + " (numbered on this host: " + layout_.numbering() + ")"});
  return false;
}

bool HierarchicalCollectives::across(const Call& call, const Step& step, int root_local,
                                     std::size_t shares) {
  if (failure()) return false;
  Call between = call;
  // Hosts that name different roots, cut their data differently or run different operations must
  // meet, so that they find that out: the details are above the bits of the tags. The part itself
  // compares the root's host and the size.
  constexpr unsigned kShareBits = 12;
  const std::uint64_t details =
      (static_cast<std::uint64_t>(root_local) << kShareBits) | (shares - 1);
  between.sequence = call.sequence | (details << kSequenceBits);
  between.turn = across_turn_++;
  return !flat(step(*parts_.across, between));
}

Error HierarchicalCollectives::flat(Error error) {
  if (error) abort(error);
  return error;
}

Error HierarchicalCollectives::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::vector<int> HierarchicalCollectives::awaited() const {
  const std::vector<int> by_messages = parts_.mailbox->awaited();
  std::set<int> ranks(by_messages.begin(), by_messages.end());
  for (const int index : parts_.inside->awaited())
    ranks.insert(layout_.here()[static_cast<std::size_t>(index)]);
  return {ranks.begin(), ranks.end()};
}

std::vector<double> HierarchicalCollectives::waited() const {
  std::vector<double> seconds = parts_.flat->waited();
  seconds.resize(static_cast<std::size_t>(size()));
  const auto add = [&](const Collectives& part, const std::vector<int>& ranks) {
    const std::vector<double> waited = part.waited();
    for (std::size_t i = 0; i < waited.size(); ++i)
      seconds[static_cast<std::size_t>(ranks[i])] += waited[i];
  };
  add(*parts_.inside, layout_.here());
  if (parts_.across) add(*parts_.across, layout_.across(layout_.local));
  return seconds;
}

void HierarchicalCollectives::abort(Error reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = reason;
  }
  parts_.inside->abort(reason);
  parts_.mailbox->abort(reason);
}

// --- operations ---

Error HierarchicalCollectives::barrier(const Call& call) {
  const Step meet = [](Collectives& part, const Call& own) { return part.barrier(own); };
  (void)(beginSteps(call, Operation::kBarrier, 0) && inside(call, meet) &&
         (layout_.local != 0 || across(call, meet)) && inside(call, meet));
  return failure();
}

Error HierarchicalCollectives::broadcast(const Call& call, Bytes data, int root) {
  if (Error error = failure()) return error;
  if (data.size() >= kTreeBytes && layout_.treeKeepsToHosts(root))
    return flat(parts_.flat->broadcast(call, data, root));
  if (!beginSteps(call, Operation::kBroadcast, data.size(), root)) return failure();
  const auto from = [&](int one) -> Step {
    return
        [data, one](Collectives& part, const Call& own) { return part.broadcast(own, data, one); };
  };
  const int host = layout_.hostOf(root);
  const int local = layout_.localOf(root);
  // If some host has no rank of the root's index, the hosts' first ranks get the data first.
  const bool crosses = local < layout_.fewest();
  const int index = crosses ? local : 0;
  if (!crosses && layout_.host == host && !inside(call, from(local))) return failure();
  if (layout_.local == index && !across(call, from(host), local)) return failure();
  if (crosses || layout_.host != host) (void)inside(call, from(index), index);
  return failure();
}

Error HierarchicalCollectives::allReduce(const Call& call, Bytes data) {
  if (!canReduce(call.element, call.reduction)) return parts_.flat->allReduce(call, data);
  if (needsAllRanks(call)) return flat(parts_.flat->allReduce(call, data));
  return reduceTo(call, data, kEverywhere);
}

Error HierarchicalCollectives::reduce(const Call& call, Bytes data, int root) {
  if (!canReduce(call.element, call.reduction)) return parts_.flat->reduce(call, data, root);
  if (needsAllRanks(call)) return flat(parts_.flat->reduce(call, data, root));
  return reduceTo(call, data, root);
}

Error HierarchicalCollectives::reduceTo(const Call& call, Bytes data, int root) {
  const Operation operation = root == kEverywhere ? Operation::kAllReduce : Operation::kReduce;
  if (!beginSteps(call, operation, data.size(), root)) return failure();
  const Call sum = partialCall(call);
  const auto sharers = static_cast<std::size_t>(data.size() < kShareBytes ? 1 : layout_.fewest());
  const std::size_t element = sizeOf(call.element);
  const std::size_t each = (data.size() / element + sharers - 1) / sharers * element;
  std::vector<Bytes> shares;  // empty for the ranks after the sharers
  for (std::size_t i = 0; i < layout_.here().size(); ++i) {
    const std::size_t from = std::min(i * each, data.size());
    shares.push_back(data.subspan(from, std::min(each, data.size() - from)));
  }
  const std::vector<ConstBytes> inputs(shares.begin(), shares.end());
  // Only ranks that want the result may change their data.
  Bytes own_share = shares[static_cast<std::size_t>(layout_.local)];
  std::unique_ptr<std::byte[]> scratch;
  if (root != kEverywhere && root != rank()) {
    scratch = memory(own_share.size());
    own_share = {scratch.get(), own_share.size()};
  }
  if (!inside(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, inputs, own_share);
      }))
    return failure();
  if (layout_.local < static_cast<int>(sharers)) {
    if (!across(
            sum,
            [&](Collectives& part, const Call& own) {
              return root == kEverywhere ? part.allReduce(own, own_share)
                                         : part.reduce(own, own_share, layout_.hostOf(root));
            },
            root == kEverywhere ? 0 : layout_.localOf(root), sharers))
      return failure();
    finishReduction(call, own_share, size());
  }
  if (root == kEverywhere) {
    (void)inside(call, [&](Collectives& part, const Call& own) {
      return part.allGather(own, own_share, shares);
    });
  } else if (layout_.host == layout_.hostOf(root)) {
    if (rank() != root) shares.clear();
    (void)inside(call, [&](Collectives& part, const Call& own) {
      return part.gather(own, own_share, shares, layout_.localOf(root));
    });
  }
  return failure();
}

bool HierarchicalCollectives::gatherInside(const Call& call, std::size_t host, ConstBytes in,
                                           std::span<const Bytes> out) {
  const std::vector<Bytes> places = pick(out, layout_.hosts[host]);
  return inside(
      call, [&](Collectives& part, const Call& own) { return part.allGather(own, in, places); });
}

Error HierarchicalCollectives::allGather(const Call& call, ConstBytes in,
                                         std::span<const Bytes> out) {
  if (Error error = failure()) return error;
  if (layout_.fewest() != layout_.most() || out.size() != static_cast<std::size_t>(size()))
    return flat(parts_.flat->allGather(call, in, out));
  if (!beginSteps(call, Operation::kAllGather, in.size())) return failure();
  const std::vector<Bytes> mine = pick(out, layout_.across(layout_.local));  // by host
  // This host's parts first, which finds out who is missing here.
  const auto here = static_cast<std::size_t>(layout_.host);
  if (!gatherInside(call, here, in, out) || !across(call, [&](Collectives& part, const Call& own) {
        return part.allGather(own, mine[here], mine);
      }))
    return failure();
  for (std::size_t host = 0; host < mine.size(); ++host)
    if (host != here && !gatherInside(call, host, mine[host], out)) break;
  return failure();
}

Error HierarchicalCollectives::reduceScatter(const Call& call, std::span<const ConstBytes> in,
                                             Bytes out) {
  if (Error error = failure()) return error;
  if (!canReduce(call.element, call.reduction)) return parts_.flat->reduceScatter(call, in, out);
  const bool uneven =
      layout_.fewest() != layout_.most() || in.size() != static_cast<std::size_t>(size());
  if (uneven || needsAllRanks(call)) return flat(parts_.flat->reduceScatter(call, in, out));
  if (!beginSteps(call, Operation::kReduceScatter, out.size())) return failure();
  const Call sum = partialCall(call);
  std::size_t total = 0;
  for (const ConstBytes& part : pick(in, layout_.across(layout_.local)))
    total += part.size();
  const std::unique_ptr<std::byte[]> sums = memory(total);
  std::vector<ConstBytes> by_host;  // this host's sums for the ranks with this rank's index
  std::byte* at = sums.get();
  for (const std::vector<int>& ranks : layout_.hosts) {
    const std::vector<ConstBytes> parts = pick(in, ranks);
    const Bytes reduced(at, parts[static_cast<std::size_t>(layout_.local)].size());
    if (!inside(sum, [&](Collectives& part, const Call& own) {
          return part.reduceScatter(own, parts, reduced);
        }))
      return failure();
    by_host.emplace_back(reduced);
    at += reduced.size();
  }
  if (across(sum, [&](Collectives& part, const Call& own) {
        return part.reduceScatter(own, by_host, out);
      }))
    finishReduction(call, out, size());
  return failure();
}

// --- from rank to rank ---

Error HierarchicalCollectives::gather(const Call& call, ConstBytes in, std::span<const Bytes> out,
                                      int root) {
  if (Error error = failure()) return error;
  return flat(parts_.flat->gather(call, in, out, root));
}

Error HierarchicalCollectives::scatter(const Call& call, std::span<const ConstBytes> in, Bytes out,
                                       int root) {
  if (Error error = failure()) return error;
  return flat(parts_.flat->scatter(call, in, out, root));
}

Error HierarchicalCollectives::allToAll(const Call& call, std::span<const ConstBytes> in,
                                        std::span<const Bytes> out) {
  if (Error error = failure()) return error;
  return flat(parts_.flat->allToAll(call, in, out));
}

}  // namespace weft::collectives
