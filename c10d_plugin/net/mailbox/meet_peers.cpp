#include "c10d_plugin/net/mailbox/meet_peers.h"

#include "c10d_plugin/store/all_gather.h"
#include "c10d_plugin/store/record.h"
#include "transport/io/address.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;
using transport::Result;

Result<std::vector<PeerAddress>> meetPeers(KeyValue& store, int rank, int size,
                                           const PeerAddress& own, const std::string& key_check,
                                           Deadline deadline) {
  const std::string record = Record()
                                 .set("name", own.name)
                                 .set("address", own.address)
                                 .set("key_check", key_check)
                                 .toText();
  const auto said = storeAllGather(store, "address", record, rank, allRanks(size), deadline);
  if (!said.ok()) return said.error();
  std::vector<PeerAddress> peers;
  for (int other = 0; other < size; ++other) {
    const std::string who = "rank " + std::to_string(other);
    const Record theirs =
        Record::fromText(said.value()[static_cast<std::size_t>(other)]).value_or(Record());
    const Result<transport::Address> parsed = transport::parseAddress(theirs.text("address"));
    if (!parsed.ok()) {
      return Error(ErrorCode::kProtocol, "the address of " + who + " in the Store is malformed: " +
                                             parsed.error().text());
    }
    if (theirs.text("key_check") != key_check) {
      return Error(ErrorCode::kAuthFailed,
                   "rank " + std::to_string(rank) + " and " + who +
                       " hold different keys; give all ranks the same file (WEFT_AUTH_KEY_FILE)");
    }
    peers.push_back({theirs.text("name"), theirs.text("address"), parsed.value().host});
  }
  return peers;
}

}  // namespace weft::collectives
