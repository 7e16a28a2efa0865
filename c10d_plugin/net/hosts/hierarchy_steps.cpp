#include "c10d_plugin/net/hosts/hierarchy_steps.h"

#include <chrono>
#include <set>

#include "c10d_plugin/net/messages/message_collectives.h"

namespace weft::collectives {
namespace {

// How much longer the other ranks of a host wait than the one whose error comes first.
constexpr std::chrono::milliseconds kErrorFirst{300};

}  // namespace

bool HierarchySteps::begin(const Call& call, Operation operation, std::uint64_t bytes, int root) {
  if (failure()) return false;
  const Tag first = MessageCollectives::firstTag(kFlatChannel, call);
  const Label label = OpFingerprint::of(operation, call, bytes, root).label();
  // An operation in steps takes no message from rank to rank, so there it is over before it begins.
  return !endedBy(
      parts_.mailbox->reached({first, first + RequestSet::kTags - 1, label, /*over=*/true}));
}

bool HierarchySteps::inside(const Call& call, const Step& step, int first) {
  if (failure()) return false;
  Call local = call;
  local.sequence = inside_sequence_++;
  if (layout_.local != first) local.deadline += kErrorFirst;
  const Error error = step(*parts_.inside, local);
  if (!error) return true;
  abort({error.code(), error.text() + " (numbered on this host: " + layout_.numbering() + ")"});
  return false;
}

bool HierarchySteps::across(const Call& call, const Step& step, int root_local,
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
  return !endedBy(step(*parts_.across, between));
}

Error HierarchySteps::endedBy(Error error) {
  if (error) abort(error);
  return error;
}

Error HierarchySteps::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

std::vector<int> HierarchySteps::awaited() const {
  const std::vector<int> by_messages = parts_.mailbox->awaited();
  std::set<int> ranks(by_messages.begin(), by_messages.end());
  for (const int index : parts_.inside->awaited())
    ranks.insert(layout_.here()[static_cast<std::size_t>(index)]);
  return {ranks.begin(), ranks.end()};
}

std::vector<double> HierarchySteps::waited() const {
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

void HierarchySteps::abort(const Error& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = reason;
  }
  parts_.inside->abort(reason);
  parts_.mailbox->abort(reason);
}

}  // namespace weft::collectives
