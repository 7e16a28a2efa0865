#include "c10d_plugin/store/secret.h"

#include <string>

namespace weft::collectives {

using transport::Error;
using transport::Result;

Result<transport::GroupSecret> shareSecret(KeyValue& store, int rank, Deadline deadline) {
  if (rank == 0) {
    const Result<std::string> made = transport::newSecretText();
    if (!made.ok()) return made.error();
    if (Error error = store.set("secret", made.value())) return error;
  }
  const Result<std::string> text = store.get("secret", deadline);
  if (!text.ok()) {
    return Error(text.error().code(), "rank 0 did not share the group's secret, so rank " +
                                          std::to_string(rank) +
                                          " cannot join: " + text.error().text());
  }
  return transport::parseSecret(text.value());
}

}  // namespace weft::collectives
