#include "pipe/workers/repeated_draws.h"

#include <c10/util/ScopeExit.h>

namespace weft::pipe {

using Purpose = RngScope::Purpose;

RepeatedDraws::RepeatedDraws(c10::Device device, std::size_t stage)
    : device_(device), stage_(stage) {}
RepeatedDraws::~RepeatedDraws() = default;

void RepeatedDraws::begin() {
  watchRandomOperators();
  const bool expected = false;
  if (now_) {
    within_.emplace(RngTurn{}, device_, Purpose::kRepeat, &now_->before(), expected);
  } else if (then_) {
    now_.emplace(RngTurn{}, device_, Purpose::kRepeat, &*then_, expected);
  } else {
    now_.emplace(RngTurn{}, device_, Purpose::kRecord, nullptr, expected);
  }
}

void RepeatedDraws::end() {
  const auto left = c10::make_scope_exit([this] { leave(); });
  if (within_) return;  // the first run has no end yet to compare with
  if (then_) {
    now_->checkRepeated(stage_);
  } else {
    then_ = now_->take();
  }
}

void RepeatedDraws::leave() { (within_ ? within_ : now_).reset(); }

}  // namespace weft::pipe
