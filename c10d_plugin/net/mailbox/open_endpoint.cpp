#include "c10d_plugin/net/mailbox/open_endpoint.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/net/mailbox/mail_wire.h"
#include "c10d_plugin/store/all_gather.h"
#include "c10d_plugin/store/secret.h"
#include "transport/auth/auth_key.h"
#include "transport/environment_options.h"
#include "transport/io/address.h"

namespace weft::collectives {

using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

std::string defaultName() {
  std::array<char, 65> host{};
  if (::gethostname(host.data(), host.size() - 1) != 0 || host[0] == '\0') host = {"process"};
  return std::string(host.data()) + "/" + std::to_string(::getpid());
}

transport::EndpointOptions endpointOptions(const transport::EndpointOptions& given,
                                           const transport::GroupSecret& secret) {
  transport::EndpointOptions endpoint = given;
  endpoint.group_id = secret.group_id;
  if (endpoint.name.empty()) endpoint.name = defaultName();
  if (!endpoint.key.valid()) endpoint.key = secret.key;
  // What may be queued is bounded by the windows and by what the callers keep anyway.
  endpoint.limits.max_queued_bytes = std::size_t{1} << 40;
  // Bytes go where a receive waits for them, or are kept within a window, whatever their number.
  endpoint.limits.max_message_bytes = std::uint64_t{64} << 30;
  endpoint.limits.max_header_bytes = MailHeader::kBytes + MailHeader::kMaxText;
  endpoint.limits.max_buffers = 1;
  return endpoint;
}

// What a rank tells the others, in the order of what it sets.
enum Said : std::size_t { kName, kAddress, kKeyCheck, kSharesMemory, kTexts };

// What `text`, rank `other`'s, says.
Result<MailboxAddress> parseSaid(const std::string& text, int other, int rank,
                                 const std::string& key_check) {
  const std::string who = "rank " + std::to_string(other);
  auto said = splitTexts(text).value_or(std::vector<std::string>());
  said.resize(kTexts);  // what is not said is empty
  const Result<transport::Address> parsed = transport::parseAddress(said[kAddress]);
  if (!parsed.ok()) {
    return Error(ErrorCode::kProtocol,
                 "the address of " + who + " in the Store is malformed: " + parsed.error().text());
  }
  if (said[kKeyCheck] != key_check) {
    return Error(ErrorCode::kAuthFailed,
                 "rank " + std::to_string(rank) + " and " + who +
                     " have different keys in their key files; give all ranks the same file "
                     "(WEFT_AUTH_KEY_FILE)");
  }
  return MailboxAddress{said[kName], said[kAddress], parsed.value().host,
                        said[kSharesMemory] == "1"};
}

}  // namespace

Result<OpenedEndpoint> openEndpoint(const MailboxOptions& options, KeyValue& store,
                                    Deadline deadline, transport::EndpointHandler& handler) {
  const Result<transport::GroupSecret> secret = shareSecret(store, options.rank, deadline);
  if (!secret.ok()) return secret.error();
  const transport::EndpointOptions of_endpoint = endpointOptions(options, secret.value());
  auto endpoint = transport::Endpoint::create(of_endpoint, handler);
  if (!endpoint.ok()) return endpoint.error();
  OpenedEndpoint opened{std::move(endpoint).value(), {}, of_endpoint.key};

  const std::string key_check = transport::keyCheck(of_endpoint.key, of_endpoint.group_id);
  const std::string own = joinTexts(
      {of_endpoint.name, opened.endpoint->address(), key_check, options.arena.enabled ? "1" : "0"});
  const auto said =
      storeAllGather(store, "address", own, options.rank, allRanks(options.size), deadline);
  if (!said.ok()) return said.error();
  for (int other = 0; other < options.size; ++other) {
    auto address =
        parseSaid(said.value()[static_cast<std::size_t>(other)], other, options.rank, key_check);
    if (!address.ok()) return address.error();
    opened.ranks.push_back(std::move(address).value());
  }
  const std::string host = transport::hostIdentity();
  const bool spans_hosts =
      std::any_of(opened.ranks.begin(), opened.ranks.end(),
                  [&](const MailboxAddress& rank) { return rank.host != host; });
  if (spans_hosts && !options.key.valid()) transport::warnOfKeyInStore();
  return opened;
}

}  // namespace weft::collectives
