#include "c10d_plugin/engine/coalesced_work.h"

#include <ATen/core/ivalue.h>
#include <cxxabi.h>

#include <algorithm>
#include <new>

#include "transport/base/deadline.h"

namespace weft::process_group {

bool CoalescedWork::isCompleted() {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& part : parts_) {
    if (auto error = part->exception()) return error;
  }
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  const auto deadline = transport::deadlineAfter(timeout);
  std::exception_ptr failure;
  const auto keep = [&] {
    if (!failure) failure = std::current_exception();
  };
  for (const auto& part : parts_) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - steady_clock::now());
    try {
      part->wait(timeout == kNoTimeout ? kNoTimeout : std::max(milliseconds(1), left));
    } catch (const abi::__forced_unwind&) {
      throw;  // pthread_exit(): the thread ends
    } catch (const c10::Error&) {
      keep();
    } catch (const std::bad_alloc&) {
      keep();
    } catch (...) {
      if (std::current_exception() != part->exception()) throw;  // it is not the part's own
      keep();
    }
  }
  if (failure) std::rethrow_exception(failure);
  c10d::Work::synchronize();
  return true;
}

void CoalescedWork::synchronize() {
  for (const auto& part : parts_)
    part->synchronize();
  c10d::Work::synchronize();
}

c10::intrusive_ptr<c10::ivalue::Future> CoalescedWork::getFuture() {
  c10::List<c10::intrusive_ptr<c10::ivalue::Future>> futures(
      c10::FutureType::create(c10::ListType::ofTensors()));
  for (const auto& part : parts_)
    futures.push_back(part->getFuture());
  return c10::collectAll(futures);
}

}  // namespace weft::process_group
