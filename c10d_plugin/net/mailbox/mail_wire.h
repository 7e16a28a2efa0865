// The headers of a mailbox's messages on the wire. Little-endian, of fixed size but for the text of
// kAbort and kSendCancelled. Parsing is total: any bytes give a header or nothing.
//
//   0  u64 kind         8  u64 tag         16 u64 id        24 u64 size        32 3 x u64 label
//
// kEager and kRendezvous have one buffer, the message's bytes; the others have none.
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
  kHello = 1,          // makes a connection: its end tells a waiting receiver of a death
  kEager = 2,          // a message sent at once: tag, label
  kRequestToSend = 3,  // RTS, a message that waits at its sender: tag, label, size, id
  kClearToSend = 4,    // CTS: the announced message `id` may come; size 1: it is declined
  kRendezvous = 5,     // the bytes of the announced message `id`
  kCredit = 6,         // `size` more bytes may be sent eagerly
  kAbort = 7,          // the sender has aborted; id is the ErrorCode, the text follows
  kSendCancelled = 8,  // the announced message `id` will not come; size is the ErrorCode, the text
                       // follows
};

struct MailHeader {
  static constexpr std::size_t kBytes = 56;
  static constexpr std::size_t kMaxText = 4096;

  MailKind kind = MailKind::kHello;
  Tag tag = 0;
  std::uint64_t id = 0;
  std::uint64_t size = 0;
  Label label;
  std::string text;  // kAbort and kSendCancelled only, cut at kMaxText
};

std::vector<std::byte> encode(const MailHeader& header);
std::optional<MailHeader> decode(std::span<const std::byte> bytes);

}  // namespace weft::collectives
