#include "c10d_plugin/store/secret.h"

#include <algorithm>

namespace weft::collectives {

using transport::AuthKey;
using transport::Error;
using transport::ErrorCode;
using transport::Result;

Result<GroupSecret> shareSecret(KeyValue& store, int rank, Deadline deadline) {
  constexpr std::size_t kHex = AuthKey::kBytes * 2;
  if (rank == 0) {
    const Result<AuthKey> group = AuthKey::random();
    const Result<AuthKey> key = AuthKey::random();
    if (!group.ok()) return group.error();
    if (!key.ok()) return key.error();
    if (Error error = store.set("secret", group.value().toHex() + key.value().toHex()))
      return error;
  }
  const Result<std::string> text = store.get("secret", deadline);
  if (!text.ok()) {
    return Error(text.error().code(), "rank 0 did not share the group's secret, so rank " +
                                          std::to_string(rank) +
                                          " cannot join: " + text.error().text());
  }
  const Result<AuthKey> key =
      AuthKey::fromHex(text.value().substr(std::min(kHex, text.value().size())));
  if (text.value().size() != 2 * kHex || !key.ok())
    return Error(ErrorCode::kProtocol, "the group's secret in the Store is malformed");
  return GroupSecret{text.value().substr(0, kHex), key.value()};
}

}  // namespace weft::collectives
