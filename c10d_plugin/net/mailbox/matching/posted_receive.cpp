#include "c10d_plugin/net/mailbox/matching/posted_receive.h"

#include <string>

#include "transport/base/peer_name.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;

void PostedReceive::deliver(int sender, std::uint64_t size, const Label& sent) const {
  if (fits(size, sent)) return complete(Error::ok(), sender, size, sent);
  std::string text = "rank " + std::to_string(sender) + " sent " + transport::bytesText(size);
  if (into.size != size) {
    text += " where " + std::to_string(into.size) +
            " were expected; both sides must name the same size";
  } else {
    text += " that belong to another operation than the one that waits";
  }
  complete({ErrorCode::kInvalidArgument, text}, sender, size, sent);
}

}  // namespace weft::collectives
