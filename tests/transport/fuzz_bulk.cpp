// libFuzzer: a bulk connection whose other end brings and takes bytes in any pieces, ends or breaks
// at any time, while halves of messages are read, written and cut off. What arrives is what was
// sent, and in its place; each event is told once, and none after cut(); nothing is kept.
#include <sys/eventfd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "tests/support/fuzz_input.h"
#include "tests/transport/fuzz_steps.h"
#include "transport/base/os/unique_fd.h"
#include "transport/bulk/bulk_connection.h"

namespace {

using namespace weft::transport;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;

// The byte at a place of what one side sends.
std::byte at(std::size_t place) { return static_cast<std::byte>(place * 167 + (place >> 8)); }

class ScriptedStream final : public Stream {
 public:
  ScriptedStream() : ready_(::eventfd(1, EFD_NONBLOCK)) {}

  IoResult read(std::span<iovec> into) override {
    IoResult result;
    for (const iovec& part : into) {
      auto* const bytes = static_cast<std::byte*>(part.iov_base);
      for (std::size_t i = 0; i < part.iov_len && given < there; ++i, ++result.count)
        bytes[i] = at(given++);
    }
    if (result.count > 0 || bytesOf(into) == 0) return result;
    if (broken) return {0, ECONNRESET, false};
    if (error != 0) return {0, error, false};
    return ended ? IoResult{0, 0, true} : IoResult{0, EAGAIN, false};
  }
  IoResult write(std::span<iovec> from, std::span<const int>) override {
    if (broken || error != 0) return {0, EPIPE, false};
    IoResult result;
    for (const iovec& part : from) {
      const auto* const bytes = static_cast<const std::byte*>(part.iov_base);
      for (std::size_t i = 0; i < part.iov_len && taken < room; ++i, ++result.count)
        require(bytes[i] == at(taken++));
    }
    if (result.count == 0) result.error = EAGAIN;
    return result;
  }
  void finishWriting() override {}
  void breakOff() override { broken = true; }
  int pollFd() const override { return ready_.get(); }
  const char* transportName() const override { return "tcp"; }

  std::size_t there = 0;  // bytes that have come
  std::size_t given = 0;
  std::size_t room = 0;  // bytes that the other end takes
  std::size_t taken = 0;
  bool ended = false;
  int error = 0;
  bool broken = false;

 private:
  const UniqueFd ready_;
};

// One run, on the loop of bulk connections; it has its turn between two calls of step().
class Run {
 public:
  Run(EventLoop& loop, const std::uint8_t* data, std::size_t size)
      : input_(data, size),
        bulk_(BulkConnection::open(loop, stream_, std::make_shared<BulkCounts>(),
                                   {[this] { onArrived(); }, [this](int) { onBroken(); }})) {}

  // False: it is over, and this may go.
  bool step() {
    if (turns_-- > 0) return true;
    if (cut_) {
      require(buffers_.expired() && halves_.expired());
      return false;
    }
    if (input_.empty() || ++steps_ > 64) {
      cut();
    } else {
      act();
    }
    return true;
  }

 private:
  void act() {
    switch (input_.below(10)) {
      case 0:
      case 1:
        return read();
      case 2:
        stream_->there += input_.number<std::uint16_t>();
        return;
      case 3:
        stream_->room += input_.number<std::uint16_t>();
        return;
      case 4:
      case 5:
        return look();
      case 6:
        return push();
      case 7:
        if (input_.oneIn(2)) stream_->ended = true;
        if (input_.oneIn(2)) stream_->error = input_.oneIn(2) ? ECONNRESET : EBADMSG;
        return;
      case 8:
        if (input_.oneIn(4)) cut();
        return;
      default:
        turns_ = static_cast<int>(input_.below(4));
    }
  }

  // The next half, into a few places, of which some are to be skipped.
  void read() {
    if (reading_) return;
    std::vector<iovec> into;
    const std::size_t count = input_.below(4) + 1;
    auto places = std::make_shared<std::vector<std::vector<std::byte>>>();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size = input_.number<std::uint16_t>() % 10'000 + 1;
      const bool skipped = input_.oneIn(4);
      places->emplace_back(skipped ? 0 : size);
      into.push_back({skipped ? nullptr : places->back().data(), size});
    }
    half_ = into;
    places_ = std::move(places);
    reading_ = true;
    awaited_ = false;
    bulk_->read(into);
  }

  // Asks whether the half has arrived, as a reader of frames does.
  void look() {
    if (!reading_ || awaited_) return;
    if (bulk_->arrived()) return check();
    awaited_ = true;
  }
  void onArrived() {
    require(!cut_ && reading_ && awaited_);
    require(bulk_->arrived());
    check();
  }
  void check() {
    for (const iovec& part : half_) {
      const auto* const bytes = static_cast<const std::byte*>(part.iov_base);
      for (std::size_t i = 0; i < part.iov_len && bytes != nullptr; ++i)
        require(bytes[i] == at(read_ + i));
      read_ += part.iov_len;
    }
    require(read_ == stream_->given);
    reading_ = false;
    places_.reset();
  }
  void onBroken() {
    require(!cut_ && !broken_ && (stream_->ended || stream_->error != 0));
    broken_ = true;
  }

  void push() {
    std::vector<OwnedBuffer> half;
    const std::size_t count = input_.below(3) + 1;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t size = input_.number<std::uint16_t>() % 10'000 + 1;
      auto own = std::make_shared<std::vector<std::byte>>(size);
      for (std::byte& byte : *own)
        byte = at(pushed_++);
      halves_ = own;
      half.push_back({own->data(), size, own});
    }
    bulk_->push(std::move(half));
    bulk_->wake();
  }

  void cut() {
    cut_ = true;
    bulk_->cut();
    buffers_ = places_;
    places_.reset();
    bulk_.reset();
    turns_ = 3;  // what was posted lets go
  }

  FuzzInput input_;
  const std::shared_ptr<ScriptedStream> stream_ = std::make_shared<ScriptedStream>();
  std::vector<iovec> half_;
  std::shared_ptr<std::vector<std::vector<std::byte>>> places_;
  std::weak_ptr<void> buffers_;
  std::weak_ptr<std::vector<std::byte>> halves_;  // the last that was pushed
  std::size_t read_ = 0;
  std::size_t pushed_ = 0;
  bool reading_ = false;
  bool awaited_ = false;  // arrived() said no: on_arrived is to come
  bool broken_ = false;
  bool cut_ = false;
  int steps_ = 0;
  int turns_ = 0;
  std::shared_ptr<BulkConnection> bulk_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return runInSteps<Run>(data, size);
}
