#include "rpc_backend/agent/torch_ids.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/rref_context.h>

#include <array>
#include <cstring>

#include "rpc_backend/core/log.h"
#include "transport/base/secure_random.h"

namespace weft::rpc {

namespace {

using torch::distributed::autograd::DistAutogradContainer;
using torch::distributed::rpc::RRefContext;

// As in torch_rrefs.cpp: an explicit instantiation may name private members.
struct NextLocalId {
  friend auto& member(NextLocalId);
};
struct NextContext {
  friend auto& member(NextContext, DistAutogradContainer&);
};
struct NextMessage {
  friend auto& member(NextMessage, DistAutogradContainer&);
};
template <typename Tag, auto Member>
struct ExposeStatic {
  friend auto& member(Tag) { return *Member; }
};
template <typename Tag, auto Member>
struct Expose {
  friend auto& member(Tag, DistAutogradContainer& container) { return container.*Member; }
};
template struct ExposeStatic<NextLocalId, &RRefContext::nextLocalId_>;
template struct Expose<NextContext, &DistAutogradContainer::next_context_id_>;
template struct Expose<NextMessage, &DistAutogradContainer::next_autograd_message_id_>;

// torch keeps the worker in the upper 16 bits of these.
constexpr int kWorkerShift = 48;
constexpr std::int64_t kRandomBits = (std::int64_t{1} << 46) - 1;

}  // namespace

std::int64_t randomFirstId() {
  std::array<std::uint8_t, 8> random{};
  auto error = transport::fillRandom(random);
  TORCH_CHECK(!error, error.text());
  std::uint64_t bits = 0;
  std::memcpy(&bits, random.data(), sizeof(bits));
  return static_cast<std::int64_t>((bits >> 3U) | std::uint64_t{1} << 40U);
}

void startIdsAnew(std::int32_t rank) {
  auto& next = member(NextLocalId{});
  if (next.load() == 0) next.store(randomFirstId());
  try {
    DistAutogradContainer& container = DistAutogradContainer::getInstance();
    const std::int64_t worker = static_cast<std::int64_t>(rank) << kWorkerShift;
    member(NextContext{}, container).store(worker | (randomFirstId() & kRandomBits));
    member(NextMessage{}, container).store(worker | (randomFirstId() & kRandomBits));
  } catch (const c10::Error& error) {
    logDebug(std::string("distributed autograd is not in use: ") + error.what_without_backtrace());
  }
}

}  // namespace weft::rpc
