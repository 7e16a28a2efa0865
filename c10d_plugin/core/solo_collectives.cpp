#include "c10d_plugin/core/solo_collectives.h"

#include <mutex>
#include <utility>

#include "transport/base/peer_name.h"

namespace weft::collectives {

namespace {

Error copy(ConstBytes from, Bytes to) {
  if (from.size() != to.size()) {
    return {ErrorCode::kInvalidArgument, "rank 0 sends itself " +
                                             transport::bytesText(from.size()) + " and expects " +
                                             std::to_string(to.size())};
  }
  copyOwn(from, to);
  return Error::ok();
}

class SoloCollectives final : public Collectives {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }

  Error barrier(const Call&) override { return failure(); }
  Error broadcast(const Call&, Bytes, int) override { return failure(); }
  Error allReduce(const Call&, Bytes) override { return failure(); }
  Error reduce(const Call&, Bytes, int) override { return failure(); }
  Error allGather(const Call&, ConstBytes in, std::span<const Bytes> out) override {
    return move(in, out[0]);
  }
  Error gather(const Call&, ConstBytes in, std::span<const Bytes> out, int) override {
    return move(in, out[0]);
  }
  Error scatter(const Call&, std::span<const ConstBytes> in, Bytes out, int) override {
    return move(in[0], out);
  }
  Error reduceScatter(const Call&, std::span<const ConstBytes> in, Bytes out) override {
    return move(in[0], out);
  }
  Error allToAll(const Call&, std::span<const ConstBytes> in, std::span<const Bytes> out) override {
    return move(in[0], out[0]);
  }
  void abort(Error reason) override {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(reason);
  }
  bool outlivesDifferentCalls() const noexcept override { return true; }

 private:
  Error failure() {
    const std::lock_guard lock(mutex_);
    return failure_;
  }
  Error move(ConstBytes from, Bytes to) {
    if (Error failed = failure()) return failed;
    return copy(from, to);
  }

  std::mutex mutex_;
  Error failure_;
};

}  // namespace

std::unique_ptr<Collectives> makeSoloCollectives() { return std::make_unique<SoloCollectives>(); }

}  // namespace weft::collectives
