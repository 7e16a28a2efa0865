#include "rpc_backend/join/group_secret.h"

#include <c10/util/Exception.h>

#include "rpc_backend/join/store_access.h"

namespace weft::rpc {

GroupSecret agreeOnSecret(c10d::Store& store, const std::string& key_file, milliseconds timeout,
                          const std::string& who) {
  auto random = transport::AuthKey::random();
  auto group = transport::AuthKey::random();
  TORCH_CHECK(random.ok() && group.ok(), who, ": the system gives no random numbers");
  // The first worker decides, whichever rank it has; compareSet makes that atomic.
  const std::string offer = group.value().toHex() + random.value().toHex();
  store.compareSet("secret", std::string(), offer);
  TORCH_CHECK(waitForKeys(store, {"secret"}, timeout), who,
              ": the Store holds no group secret after ", timeout.count(),
              " ms; look at the process that serves the Store (usually rank 0)");
  const std::string text = store.get_to_str("secret");
  constexpr std::size_t kHex = transport::AuthKey::kBytes * 2;
  TORCH_CHECK(text.size() == 2 * kHex, who, ": the group secret in the Store is malformed");
  GroupSecret secret;
  secret.group_id = text.substr(0, kHex);
  auto key = key_file.empty() ? transport::AuthKey::fromHex(text.substr(kHex))
                              : transport::AuthKey::fromFile(key_file);
  TORCH_CHECK(key.ok(), who, ": ", key.error().text());
  secret.key = key.value();
  secret.auth = key_file.empty() ? "store" : "file";
  if (!key_file.empty()) secret.key_check = transport::keyCheck(secret.key, secret.group_id);
  return secret;
}

}  // namespace weft::rpc
