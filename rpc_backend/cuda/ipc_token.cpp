#include "rpc_backend/cuda/ipc_token.h"

#include <c10/util/Exception.h>

#include <cstring>

namespace weft::rpc {

namespace {

class Writer {
 public:
  template <typename Number>
  void number(Number value) {
    const auto* first = reinterpret_cast<const std::byte*>(&value);
    out.insert(out.end(), first, first + sizeof(value));
  }
  void text(const std::string& value) {
    number(static_cast<std::uint16_t>(value.size()));
    const auto* first = reinterpret_cast<const std::byte*>(value.data());
    out.insert(out.end(), first, first + value.size());
  }
  std::vector<std::byte> out;
};

class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <typename Number>
  Number number() {
    Number value{};
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }
  std::string text() {
    const auto bytes = take(number<std::uint16_t>());
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  // A number of things that take at least so many bytes each: a few bytes do not ask for much.
  std::uint32_t count(std::size_t least) {
    const auto value = number<std::uint32_t>();
    check(value <= rest_.size() / least);
    return value;
  }
  void check(bool fits) const { TORCH_CHECK(fits, "a token of device memory is malformed"); }

 private:
  std::span<const std::byte> take(std::size_t size) {
    check(size <= rest_.size());
    const auto taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  std::span<const std::byte> rest_;
};

}  // namespace

std::vector<std::byte> IpcToken::toBytes() const {
  Writer writer;
  writer.number(generation);
  writer.number(static_cast<std::uint32_t>(devices.size()));
  for (const auto& [bus_id, event] : devices) {
    writer.text(bus_id);
    writer.text(event);
  }
  writer.number(static_cast<std::uint32_t>(segments.size()));
  for (const auto& [device, handle] : segments) {
    writer.number(device);
    writer.text(handle);
  }
  writer.number(static_cast<std::uint32_t>(places.size()));
  for (const auto& [segment, offset] : places) {
    writer.number(segment);
    writer.number(offset);
  }
  return std::move(writer.out);
}

IpcToken IpcToken::fromBytes(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  IpcToken token;
  token.generation = reader.number<std::uint64_t>();
  token.devices.resize(reader.count(2 * sizeof(std::uint16_t)));
  for (auto& [bus_id, event] : token.devices) {
    bus_id = reader.text();
    event = reader.text();
  }
  token.segments.resize(reader.count(sizeof(std::uint8_t) + sizeof(std::uint16_t)));
  for (auto& [device, handle] : token.segments) {
    device = reader.number<std::uint8_t>();
    reader.check(device < token.devices.size());
    handle = reader.text();
  }
  token.places.resize(reader.count(sizeof(std::uint32_t) + sizeof(std::uint64_t)));
  for (auto& [segment, offset] : token.places) {
    segment = reader.number<std::uint32_t>();
    offset = reader.number<std::uint64_t>();
    reader.check(segment < token.segments.size());
  }
  return token;
}

}  // namespace weft::rpc
