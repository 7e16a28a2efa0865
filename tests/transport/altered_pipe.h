// Two ends of a connection in memory, whose bytes a fuzzer may change on their way.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "tests/support/fuzz_input.h"
#include "transport/io/stream.h"

namespace weft::transport {

// One direction.
struct AlteredPipe {
  std::vector<std::byte> bytes;
  std::size_t given = 0;
  bool ended = false;
  bool altered = false;

  std::size_t onTheWay() const { return bytes.size() - given; }

  // Flips, drops, repeats, swaps, adds or cuts off some of the bytes that are on their way.
  void alter(testing::FuzzInput& input) {
    const auto place = [&] {
      return bytes.begin() +
             static_cast<std::ptrdiff_t>(given + input.number<std::uint16_t>() % (onTheWay() + 1));
    };
    auto first = place();
    auto last = place();
    if (last < first) std::swap(first, last);
    altered |= first != last;  // else some of these change nothing
    switch (input.below(6)) {
      case 0:
        altered |= first != bytes.end();
        if (first != bytes.end()) *first ^= static_cast<std::byte>(1 << input.below(8));
        break;
      case 1:
        bytes.erase(first, last);
        break;
      case 2: {
        const std::vector<std::byte> again(first, last);
        bytes.insert(last, again.begin(), again.end());
        break;
      }
      case 3:
        std::rotate(first, first + (last - first) / 2, last);
        break;
      case 4: {
        const auto some = input.bytes(input.number());
        bytes.insert(first, some.begin(), some.end());
        altered |= !some.empty();
        break;
      }
      default:
        bytes.erase(first, bytes.end());
        ended = altered = true;
    }
  }
};

class AlteredEnd : public Stream {
 public:
  // Takes and gives no more at once than `at_once`.
  AlteredEnd(AlteredPipe& in, AlteredPipe& out) : in_(in), out_(out) {}

  IoResult write(std::span<iovec> from, std::span<const int>) override {
    std::size_t allowed = at_once;
    IoResult result;
    for (const iovec& part : from) {
      const std::size_t some = std::min(allowed, part.iov_len);
      const auto* const begin = static_cast<const std::byte*>(part.iov_base);
      out_.bytes.insert(out_.bytes.end(), begin, begin + some);
      result.count += some;
      allowed -= some;
    }
    if (result.count == 0) result.error = EAGAIN;
    return result;
  }
  IoResult read(std::span<iovec> into) override {
    std::size_t left = std::min(in_.onTheWay(), at_once);
    IoResult result;
    for (const iovec& part : into) {
      const std::size_t some = std::min(left, part.iov_len);
      std::copy_n(in_.bytes.begin() + static_cast<std::ptrdiff_t>(in_.given), some,
                  static_cast<std::byte*>(part.iov_base));
      in_.given += some;
      result.count += some;
      left -= some;
    }
    if (result.count == 0) {
      result.end = in_.ended && in_.onTheWay() == 0;
      result.error = result.end ? 0 : EAGAIN;
    }
    return result;
  }
  void finishWriting() override { out_.ended = true; }
  void breakOff() override {}
  int pollFd() const override { return -1; }
  const char* transportName() const override { return "tcp"; }

  std::size_t at_once = SIZE_MAX;

 private:
  AlteredPipe& in_;
  AlteredPipe& out_;
};

// Writes and reads over two ends, as a link does, and checks that what is handed out is what was
// written, up to the first error; and all of it, where nothing was altered.
class AlteredConversation {
 public:
  // `back`: the other direction, whose damage may end both.
  AlteredConversation(Stream& writer, Stream& reader, const AlteredPipe& pipe,
                      const AlteredPipe& back)
      : writer_(writer), reader_(reader), pipe_(pipe), back_(back) {}

  // A buffer of so many bytes behind those before.
  void add(std::size_t size) {
    constexpr std::size_t kMost = std::size_t{48} << 10;  // in all
    if (sent_.size() + size > kMost) return;
    static const std::vector<std::byte> text = [] {
      std::vector<std::byte> bytes(kMost);
      std::uint32_t number = 1;
      for (std::byte& byte : bytes)
        byte = static_cast<std::byte>((number = number * 1664525 + 1013904223) >> 24);
      return bytes;
    }();
    parts_.push_back(size);
    const auto from = text.begin() + static_cast<std::ptrdiff_t>(sent_.size());
    sent_.insert(sent_.end(), from, from + static_cast<std::ptrdiff_t>(size));
  }
  void write() {
    std::vector<iovec> from;
    std::size_t at = 0;
    for (const std::size_t size : parts_) {
      const std::size_t begin = std::max(at, written_);
      at += size;
      if (at > begin) from.push_back({sent_.data() + begin, at - begin});
    }
    if (from.empty()) return;
    // The stream may keep what it has sealed: the bytes stay where they are until it has sent them.
    const IoResult result = writer_.write(from, {});
    if (result.error != 0 && result.error != EAGAIN) {
      testing::require(back_.altered);
      error_ = result.error;
    }
    written_ += result.count;
  }
  // Into places for so many bytes, which are asked for again until they are filled.
  void read(std::size_t size) {
    if (error_ != 0) return;
    if (filled_ == places_) got_.resize(places_ += size);
    iovec into{got_.data() + filled_, places_ - filled_};
    const IoResult result = reader_.read(std::span(&into, 1));
    if (result.error != 0 && result.error != EAGAIN) {
      testing::require(result.error == EBADMSG && altered());
      error_ = result.error;
    }
    if (result.end) error_ = ENODATA;
    filled_ += result.count;
    // Not std::equal, which the fuzzer would trace byte by byte.
    testing::require(
        filled_ <= sent_.size() &&
        (filled_ == checked_ ||
         std::memcmp(got_.data() + checked_, sent_.data() + checked_, filled_ - checked_) == 0));
    checked_ = filled_;
  }
  bool over() const { return error_ != 0; }
  // Whatever is to come comes; all of it, if nothing was altered.
  void finish() {
    for (int i = 0; i < 1000 && !over() && filled_ < sent_.size(); ++i) {
      write();
      read(sent_.size() - filled_);
    }
    testing::require(altered() || filled_ == sent_.size());
  }

 private:
  bool altered() const { return pipe_.altered || back_.altered; }

  Stream& writer_;
  Stream& reader_;
  const AlteredPipe& pipe_;
  const AlteredPipe& back_;
  std::vector<std::size_t> parts_;
  std::vector<std::byte> sent_;
  std::size_t written_ = 0;
  std::vector<std::byte> got_;
  std::size_t filled_ = 0;
  std::size_t checked_ = 0;
  std::size_t places_ = 0;
  int error_ = 0;
};

}  // namespace weft::transport
