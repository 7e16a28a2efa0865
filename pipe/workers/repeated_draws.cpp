#include "pipe/workers/repeated_draws.h"

namespace weft::pipe {

RepeatedDraws::RepeatedDraws(c10::Device device) : device_(device) {}
RepeatedDraws::~RepeatedDraws() = default;

void RepeatedDraws::begin() {
  watchRandomOperators();
  const auto purpose = then_ ? RngScope::Purpose::kRepeat : RngScope::Purpose::kRecord;
  now_.emplace(RngTurn{}, device_, purpose, then_ ? &*then_ : nullptr, /*expected=*/false);
}

void RepeatedDraws::end() {
  if (!then_) then_ = now_->take();
  now_.reset();
}

}  // namespace weft::pipe
