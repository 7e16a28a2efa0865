#include "rpc_backend/torch_private/torch_ids.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/rref_context.h>

#include <array>
#include <cstring>
#include <string>

#include "rpc_backend/core/log.h"
#include "rpc_backend/core/private_member.h"
#include "transport/base/os/secure_random.h"

namespace weft::rpc::torch_rrefs {

namespace {

using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::rpc::RRefContext;

WEFT_PRIVATE_MEMBER(NextLocalId, &RRefContext::nextLocalId_);
WEFT_PRIVATE_MEMBER(NextContext, &DistAutogradContainer::next_context_id_);
WEFT_PRIVATE_MEMBER(NextMessage, &DistAutogradContainer::next_autograd_message_id_);

}  // namespace

std::int64_t idsMade() noexcept { return member(NextLocalId{})->load(std::memory_order_relaxed); }

std::int64_t randomFirstId() {
  std::array<std::uint8_t, 8> random{};
  auto error = transport::fillRandom(random);
  TORCH_CHECK(!error, error.text());
  std::uint64_t bits = 0;
  std::memcpy(&bits, random.data(), sizeof(bits));
  return static_cast<std::int64_t>((bits >> 3U) | std::uint64_t{1} << 40U);
}

void startIdsAnew(Rank self) {
  auto& next = *member(NextLocalId{});
  if (next.load() == 0) next.store(randomFirstId());
  // torch keeps the worker in the upper 16 bits of these.
  const auto first = [self] {
    return static_cast<std::int64_t>(self) << 48 |
           (randomFirstId() & ((std::int64_t{1} << 46) - 1));
  };
  try {
    DistAutogradContainer& container = DistAutogradContainer::getInstance();
    of(container, NextContext{}).store(first());
    of(container, NextMessage{}).store(first());
  } catch (const c10::Error& error) {
    logDebug(std::string("distributed autograd is not in use: ") + error.what_without_backtrace());
  }
}

}  // namespace weft::rpc::torch_rrefs
