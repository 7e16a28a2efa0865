// What the headers of a mailbox's messages look like on the wire. Little-endian, fixed size but for
// the text of an abort. Parsing is total: any bytes give a header or nothing.
//
//   0  u32 kind         8  u64 tag         16 u64 id        24 u64 size        32 3 x u64 label
//
// A message's bytes are the one buffer of kData and kAnswer; the others have none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "c10d_plugin/core/mailbox.h"

namespace weft::collectives {

enum class MailKind : std::uint32_t {
  kHello = 1,          // makes the connection, by whose loss a waiting receiver learns of a death
  kData = 2,           // a message sent at once: tag, label
  kRequestToSend = 3,  // a message that waits at its sender: tag, label, size, id
  kClearToSend = 4,    // the announced message `id` may come; size 1: it will never be wanted
  kAnswer = 5,         // the bytes of the announced message `id`
  kCredit = 6,  // `size` bytes of kData were received for good: so much more may be sent at once
  kAbort = 7,   // the sender has given up; id is the ErrorCode, the text follows
  kTakenBack =
      8,  // the announced message `id` will not come; size is the ErrorCode, the text follows
};

struct MailHeader {
  static constexpr std::size_t kBytes = 56;

  MailKind kind = MailKind::kHello;
  Tag tag = 0;
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  Label label;
  std::string text;  // kAbort and kTakenBack only, cut at 4 KiB
};

std::vector<std::byte> encode(const MailHeader& header);
std::optional<MailHeader> decode(std::span<const std::byte> bytes);

}  // namespace weft::collectives
