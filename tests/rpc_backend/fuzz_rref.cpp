// libFuzzer: RRef control messages, as pickles of any bytes and of the form that torch gives them,
// in any order, from workers that die and return. What the table says it holds is in torch's, a
// reference that ended does not come back by the same messages, and once all peers are lost nothing
// of theirs is left.
#include <algorithm>
#include <set>
#include <string>

#include "rpc_backend/rref/rref_table.h"
#include "tests/support/fuzz_input.h"

namespace {

using namespace weft::rpc;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;

constexpr Rank kSelf = 0;
constexpr Rank kPeers = 4;

class Torch final : public ForkTable {
 public:
  void addFork(const ForkIds& ids) override { forks.insert(ids); }
  Dropped removeFork(const ForkIds& ids) override {
    return forks.erase(ids) > 0 ? std::make_shared<int>(0) : nullptr;
  }
  void childSettled(const RRefKey& fork) override { settled.insert(fork); }

  std::set<ForkIds> forks;
  std::set<RRefKey> settled;
};

// As torch's picklers write integers.
void putInteger(std::string& out, FuzzInput& input) {
  const std::size_t form = input.below(8);
  if (form < 5) {
    out += 'K';
    out += static_cast<char>(input.below(5));
  } else if (form == 5) {
    out += 'M' + input.text(2);
  } else if (form == 6) {
    out += 'J' + input.text(4);
  } else {
    const std::size_t length = input.below(10);
    out += '\x8a';
    out += static_cast<char>(length);
    out += input.text(length);
  }
}

std::string payload(FuzzInput& input, int integers) {
  if (input.oneIn(8)) return input.text(input.number());
  std::string out = "\x80\x02";
  if (input.oneIn(4)) out += input.text(input.below(8));  // what comes before
  for (int i = 0; i < integers; ++i) {
    if (i % 2 == 0 || integers > 4) out += '(';
    if (input.oneIn(8)) out += "\x95" + std::string(8, '\0');
    putInteger(out, input);
    if (i % 2 == 1) out += '\x86';
  }
  if (integers > 4) out += "X";
  if (input.oneIn(16)) out += input.text(input.below(8));
  return out + "\x86.";
}

// Six integers in one tuple, and the value's type: a pickled RRef.
std::string pickled(FuzzInput& input, Rank parent) {
  std::string out = "\x80\x02(";
  for (int i = 0; i < 6; ++i) {
    if ((i == 3 || i == 5) && !input.oneIn(8)) {
      out += 'K';
      out += static_cast<char>(parent);
    } else {
      putInteger(out, input);
    }
  }
  return out + "X" + input.text(input.below(8)) + "t.";
}

bool holds(const RRefTable& table, const ForkIds& ids, Rank peer) {
  const auto all = table.holdings();
  return std::any_of(all.begin(), all.end(), [&](const RRefTable::Holding& one) {
    return one.ids == ids && one.holder == peer;
  });
}

void act(FuzzInput& input, Torch& torch, RRefTable& table, int& next) {
  const Rank peer = 1 + static_cast<Rank>(input.below(kPeers - 1));
  const RRefTable::LossCount now = table.lossCount();
  const RRefTable::LossCount losses_then =
      now - std::min<RRefTable::LossCount>(now, input.below(3));
  switch (input.below(10)) {
    case 0:
    case 1:
      if (const auto ids = readForkIds(payload(input, 4)))
        table.onForkRequest(*ids, peer, losses_then);
      return;
    case 2:
      if (const auto ids = readCreatedIds(payload(input, 4))) {
        table.onRemoteCall(*ids, peer, losses_then);
        if (ids->value == ids->fork) return;
        require(!torch.forks.contains(*ids));  // torch would throw
        if (input.oneIn(4)) return table.onRemoteFailure(*ids);
        torch.addFork(*ids);
        table.onRemoteResult(*ids, peer, losses_then);
      }
      return;
    case 3:
      if (const auto ids = readForkIds(payload(input, 4))) {
        table.onUserDelete(*ids, peer);
        require(!holds(table, *ids, peer));
        table.onForkRequest(*ids, peer, RRefTable::LossCount{0});
      }
      return;
    case 4:
      if (const auto fork = readForkId(payload(input, 2))) table.onChildAccept(*fork, peer);
      return;
    case 5:
      static_cast<void>(readFetchedId(payload(input, 3)));
      return;
    case 6:
      for (PickledRRef rref : findPickledRRefs(pickled(input, kSelf), kSelf)) {
        require(rref.parent == kSelf && rref.owner >= 0);
        rref.ids.fork.local_id = 1'000'000 + next++;  // torch counts
        if (rref.owner == kSelf) torch.addFork(rref.ids);
        table.beforeSend(rref, peer);
        if (input.oneIn(4)) table.undoSend(rref);
      }
      return;
    case 7:
      static_cast<void>(findPickledRRefs(payload(input, 6), peer));
      return;
    case 8:
      table.lose(peer);
      require(table.isOfLostLife(peer, now));
      return;
    default:
      table.releaseForks(peer);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  FuzzInput input(data, size);
  Torch torch;
  RRefTable table(torch, kSelf);
  int next = 0;
  for (int i = 0; i < 64 && !input.empty(); ++i)
    act(input, torch, table, next);
  for (const RRefTable::Holding& holding : table.holdings())
    require(torch.forks.contains(holding.ids));
  for (Rank peer = 0; peer < kPeers; ++peer)
    table.lose(peer);
  for (Rank peer = 0; peer < kPeers; ++peer)
    table.releaseForks(peer);
  for (const RRefTable::Holding& holding : table.holdings())
    require(holding.holder < 0 || holding.holder >= kPeers);
  return 0;
}
