#include "c10d_plugin/join/make_group.h"

#include <utility>

#include "transport/auth/encryption_settings.h"
#include "transport/base/environment.h"
#include "transport/io/interface.h"
#include "transport/tls/tls_context.h"

namespace weft::process_group {

using transport::Result;

namespace {

bool switchedOff(const char* variable) { return environment::value(variable) == "0"; }

Result<std::unique_ptr<collectives::EndpointMailbox>> openMailbox(const GroupPlace& place,
                                                                  collectives::KeyValue& store) {
  if (const std::string problem = environment::problem(); !problem.empty())
    return transport::invalidArgument(problem);
  const std::string wanted =
      place.interface.empty() ? environment::value(environment::kSocketIfname) : place.interface;
  auto listen = transport::chooseListenAddress(place.master_host, wanted);
  if (!listen.ok()) return listen.error();
  collectives::MailboxOptions options;
  options.rank = place.rank;
  options.size = place.size;
  options.listen_address = listen.value().address;
  options.unix_socket = !switchedOff(environment::kUnixSocket);
  options.accept_other_users = environment::value(environment::kOtherUsers) == "1";
  options.arena.enabled = !switchedOff(environment::kSharedMemory);
  options.bulk.enabled = environment::value(environment::kTcpConnections) != "1";
  if (const std::string file = environment::value(environment::kAuthKeyFile); !file.empty()) {
    auto key = transport::AuthKey::fromFile(file);
    if (!key.ok()) return key.error();
    options.key = key.value();
  }
  auto encryption = transport::encryptionFromEnvironment(options.key.valid());
  if (!encryption.ok()) return encryption.error();
  options.encryption = encryption.value().encryption;
  options.certificates = encryption.value().certificates;
  if (options.certificates.any()) {
    // A rank has no name of its own.
    auto name = transport::certificateName(options.certificates.certificate);
    if (!name.ok()) return name.error();
    options.name = name.value();
  }
  return collectives::EndpointMailbox::join(options, store, place.deadline);
}

}  // namespace

Result<GroupParts> makeGroup(const GroupPlace& place, collectives::KeyValue& store) {
  auto mailbox = openMailbox(place, store);
  if (!mailbox.ok()) return mailbox.error();
  GroupParts parts{std::move(mailbox).value(), {}};
  auto made = collectives::makeCollectives(parts.mailbox, store, place.deadline);
  if (!made.ok()) return made.error();
  parts.made = std::move(made).value();
  return parts;
}

}  // namespace weft::process_group
