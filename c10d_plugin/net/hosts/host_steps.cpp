#include "c10d_plugin/net/hosts/host_steps.h"

#include <chrono>
#include <string>

namespace weft::collectives {
namespace {

// The leader's error comes first, because it knows who is missing: the other ranks wait longer.
constexpr std::chrono::milliseconds kLeaderFirst{300};

}  // namespace

bool HostSteps::inside(const Call& call, const Step& step) {
  Call local = call;
  local.sequence = inside_sequence_++;
  if (layout_.local != 0) local.deadline += kLeaderFirst;
  const Error error = step(*parts_.inside, local);
  if (!error) return true;
  std::string numbering;
  for (std::size_t i = 0; i < layout_.here().size(); ++i) {
    numbering +=
        (i == 0 ? "" : ", ") + std::to_string(i) + " is rank " + std::to_string(layout_.here()[i]);
  }
  abort({error.code(), error.text() + " (numbered on this host: " + numbering + ")"});
  return false;
}

bool HostSteps::across(const Call& call, const Step& step) {
  Call between = call;
  between.sequence = across_sequence_++;
  return !endedBy(step(*parts_.across, between));
}

Error HostSteps::endedBy(Error error) {
  if (error) abort(error);
  return error;
}

Error HostSteps::failure() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void HostSteps::abort(const Error& reason) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) return;
    failure_ = reason;
  }
  parts_.inside->abort(reason);
  parts_.mailbox->abort(reason);
}

}  // namespace weft::collectives
