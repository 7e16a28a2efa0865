#include "c10d_plugin/net/mailbox/mail_wire.h"

#include <algorithm>
#include <cstring>

#include "transport/base/bytes.h"

namespace weft::collectives {

using transport::loadLittle;
using transport::storeLittle;

std::vector<std::byte> encode(const MailHeader& header) {
  const std::size_t text = std::min(header.text.size(), MailHeader::kMaxText);
  std::vector<std::byte> bytes(MailHeader::kBytes + text);
  storeLittle<std::uint64_t>(bytes.data(), static_cast<std::uint32_t>(header.kind));
  storeLittle<std::uint64_t>(bytes.data() + 8, header.tag);
  storeLittle<std::uint64_t>(bytes.data() + 16, header.id);
  storeLittle<std::uint64_t>(bytes.data() + 24, header.size);
  for (std::size_t i = 0; i < header.label.words.size(); ++i)
    storeLittle<std::uint64_t>(bytes.data() + 32 + 8 * i, header.label.words[i]);
  if (text > 0) std::memcpy(bytes.data() + MailHeader::kBytes, header.text.data(), text);
  return bytes;
}

std::optional<MailHeader> decode(std::span<const std::byte> bytes) {
  if (bytes.size() < MailHeader::kBytes) return std::nullopt;
  const auto kind = loadLittle<std::uint64_t>(bytes.data());
  if (kind < static_cast<std::uint64_t>(MailKind::kHello) ||
      kind > static_cast<std::uint64_t>(MailKind::kSendCancelled))
    return std::nullopt;
  MailHeader header;
  header.kind = static_cast<MailKind>(kind);
  header.tag = loadLittle<std::uint64_t>(bytes.data() + 8);
  header.id = loadLittle<std::uint64_t>(bytes.data() + 16);
  header.size = loadLittle<std::uint64_t>(bytes.data() + 24);
  for (std::size_t i = 0; i < header.label.words.size(); ++i)
    header.label.words[i] = loadLittle<std::uint64_t>(bytes.data() + 32 + 8 * i);
  const auto rest = bytes.subspan(MailHeader::kBytes);
  const bool has_text = header.kind == MailKind::kAbort || header.kind == MailKind::kSendCancelled;
  if (rest.size() > MailHeader::kMaxText || (!rest.empty() && !has_text)) return std::nullopt;
  header.text.assign(reinterpret_cast<const char*>(rest.data()), rest.size());
  return header;
}

}  // namespace weft::collectives
