#include "c10d_plugin/cuda/device/meeting.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <string>

namespace weft::process_group {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr int kAliveTag = 0x7FFFFFFF;  // nothing is ever sent with it

at::Tensor tensorOf(std::size_t words) {
  return at::empty({static_cast<std::int64_t>(words)}, at::TensorOptions(at::kLong));
}

at::Tensor tensorOf(const Words& words) {
  at::Tensor tensor = tensorOf(words.size());
  std::copy(words.begin(), words.end(), tensor.mutable_data_ptr<std::int64_t>());
  return tensor;
}

milliseconds leftUntil(steady_clock::time_point deadline) {
  const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
  return std::max(milliseconds(1), left);
}

// Without the name of the CPU operation that failed, which nobody called.
std::string reasonOf(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  const auto colon = text.find(": ");
  return text.starts_with("weft:") && colon != std::string::npos ? text.substr(colon + 2) : text;
}

}  // namespace

template <typename Function>
void Meeting::guarded(const Step& step, Function&& function) {
  state_->check(step.title);
  try {
    function();
  } catch (const c10::Error& error) {
    state_->fail(reasonOf(error));
    state_->check(step.title);
  }
}

std::vector<Words> Meeting::gather(const Words& own, const Step& step) {
  at::Tensor in = tensorOf(own);
  at::Tensor out = tensorOf(own.size() * static_cast<std::size_t>(size()));
  guarded(step, [&] {
    c10d::AllgatherOptions options;
    options.timeout = leftUntil(step.deadline);
    options.asyncOp = false;
    if (auto work = group_->_allgather_base(out, in, options)) work->wait();
  });
  std::vector<Words> all;
  const auto* first = out.const_data_ptr<std::int64_t>();
  for (int rank = 0; rank < size(); ++rank, first += own.size())
    all.emplace_back(first, first + own.size());
  return all;
}

void Meeting::send(int to, int tag, const Words& words, const Step& step) {
  std::vector<at::Tensor> tensors{tensorOf(words)};
  guarded(step, [&] { group_->send(tensors, to, tag)->wait(leftUntil(step.deadline)); });
}

Words Meeting::receive(int from, int tag, std::size_t count, const Step& step) {
  std::vector<at::Tensor> tensors{tensorOf(count)};
  guarded(step, [&] { group_->recv(tensors, from, tag)->wait(leftUntil(step.deadline)); });
  const auto* first = tensors.front().const_data_ptr<std::int64_t>();
  return {first, first + count};
}

void Meeting::watch() {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    std::vector<at::Tensor> tensors{tensorOf(std::size_t{1})};
    const auto future = group_->recv(tensors, peer, kAliveTag)->getFuture();
    future->addCallback([state = state_](c10::ivalue::Future& ended) {
      if (!ended.hasError() || state->closing()) return;
      try {
        std::rethrow_exception(ended.exception_ptr());
      } catch (const c10::Error& error) {
        state->fail(reasonOf(error));
      } catch (const std::exception& error) {
        state->fail(error.what());
      }
    });
  }
}

void Meeting::fail(const std::string& why) {
  state_->fail(why);
  abort();
}

void Meeting::breakOff(const std::string& what) {
  if (state_->failed()) return;
  fail(what + " failed on rank " + std::to_string(rank()) +
       " before it was done with the other ranks, which ends the group, because the ranks would be "
       "out of step");
}

}  // namespace weft::process_group
