#include "c10d_plugin/store/exchange_calls.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/store/all_gather.h"
#include "transport/base/interruption.h"
#include "transport/base/thrown.h"

namespace weft::collectives {

namespace {

using transport::Deadline;

// For all together: ranks find a difference at the same moment, so one that says nothing so long is
// stopped, or cannot run.
constexpr std::chrono::milliseconds kPatience{6000};

// By rank; nothing of one that does not say it by the deadline.
using Calls = std::vector<std::optional<NumberedCall>>;

// "7 float32[4] at train.py:31"
std::string encode(const NumberedCall& call) {
  return std::to_string(call.number) + " " + call.text;
}

// Nothing of what is no such text: another process wrote it.
std::optional<NumberedCall> decode(const std::string& text) {
  NumberedCall call;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, call.number);
  if (error != std::errc() || after == end || *after != ' ') return std::nullopt;
  call.text.assign(after + 1, end);
  return call;
}

Calls askAll(KeyValue& store, int rank, int size, const std::string& topic, const NumberedCall& own,
             Deadline deadline) {
  const auto keys = topicKeys(topic, allRanks(size));
  Calls calls(static_cast<std::size_t>(size));
  const auto me = static_cast<std::size_t>(rank);
  calls[me] = own;
  if (store.set(keys[me], encode(own))) return calls;
  for (std::size_t other = 0; other < calls.size(); ++other) {
    if (other == me) continue;
    auto text = store.get(keys[other], deadline);
    if (text.ok()) calls[other] = decode(text.value());
  }
  return calls;
}

// askAll(), but it ends in time where the process that serves the Store is stopped: a question to
// it has no timeout. The thread that asks is then left to itself.
Calls askInTime(std::shared_ptr<KeyValue> store, int rank, int size, const std::string& topic,
                const NumberedCall& own) {
  struct Asked {
    std::mutex mutex;
    std::condition_variable ended;
    std::optional<Calls> calls;
  };
  const auto asked = std::make_shared<Asked>();
  const Deadline deadline = Deadline::clock::now() + kPatience;
  const auto not_started = transport::thrownBy([&] {
    std::thread([=, store = std::move(store)] {
      Calls calls = askAll(*store, rank, size, topic, own, deadline);
      const std::lock_guard lock(asked->mutex);
      asked->calls = std::move(calls);
      asked->ended.notify_all();
    }).detach();
  });
  std::unique_lock lock(asked->mutex);
  const auto ended = [&] { return asked->calls.has_value(); };
  if (!not_started &&
      transport::waitInterruptibly(asked->ended, lock, deadline + std::chrono::milliseconds(500),
                                   ended) == transport::Waited::kDone)
    return std::move(*asked->calls);
  Calls none(static_cast<std::size_t>(size));
  none[static_cast<std::size_t>(rank)] = own;
  return none;
}

}  // namespace

std::string exchangeCalls(std::shared_ptr<KeyValue> store, int rank, int size,
                          const NumberedCall& own, bool last) {
  const std::string topic = last ? "called" : "called/" + std::to_string(own.number);
  const Calls calls = askInTime(std::move(store), rank, size, topic, own);
  std::uint64_t number = own.number;  // of the operation that differed
  for (const auto& call : calls)
    if (call) number = std::min(number, call->number);
  std::map<std::string, std::vector<int>> ranks_by_text;
  std::vector<int> done;
  std::vector<int> silent;
  for (int each = 0; each < size; ++each) {
    const auto& call = calls[static_cast<std::size_t>(each)];
    (!call ? silent : call->number > number ? done : ranks_by_text[call->text]).push_back(each);
  }
  std::map<std::vector<int>, std::string> text_by_ranks;  // the lowest rank first
  for (auto& [text, ranks] : ranks_by_text)
    text_by_ranks[ranks] = text;
  std::string all;
  for (const auto& [ranks, text] : text_by_ranks)
    all += (all.empty() ? "" : "; ") + ranksAsText(ranks) + ": " + text;
  if (!done.empty())
    all += "; " + ranksAsText(done) +
           (done.size() == 1 ? " had done its part" : " had done their parts");
  if (silent.empty()) return all;
  return all + "; " + ranksAsText(silent) +
         (silent.size() == 1 ? " does not answer" : " do not answer");
}

}  // namespace weft::collectives
