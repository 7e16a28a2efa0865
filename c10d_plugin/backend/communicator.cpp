#include "c10d_plugin/backend/communicator.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <thread>
#include <utility>
#include <vector>

#include "c10d_plugin/backend/store_key_value.h"
#include "c10d_plugin/core/ranks_text.h"
#include "c10d_plugin/engine/engine.h"
#include "c10d_plugin/engine/op_error.h"
#include "c10d_plugin/net/hosts/make_collectives.h"
#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/p2p/point_to_point.h"
#include "c10d_plugin/store/epoch.h"
#include "transport/auth/auth_key.h"
#include "transport/base/environment.h"
#include "transport/base/log.h"
#include "transport/base/thrown.h"
#include "transport/environment_options.h"
#include "transport/io/interface.h"
#include "transport/tls/tls_context.h"

namespace weft::process_group {

using transport::Error;
using transport::ErrorCode;
using transport::Result;

namespace {

constexpr std::chrono::milliseconds kLinger{10'000};  // for operations that run at shutdown()

// The host that serves the Store, where it is one that has a host.
std::string hostOf(const c10::intrusive_ptr<c10d::Store>& store) {
  c10::intrusive_ptr<c10d::Store> inner = store;
  if (auto* prefixed = dynamic_cast<c10d::PrefixStore*>(store.get()))
    inner = prefixed->getUnderlyingNonPrefixStore();
  const auto* tcp = dynamic_cast<const c10d::TCPStore*>(inner.get());
  return tcp == nullptr ? std::string() : tcp->getHost();
}

// "process group 'half' of size 2 (ranks 4, 5 of the default process group)": what is said of its
// forming counts ranks within it.
std::string titleOf(const DelegateSpec& group) {
  constexpr std::size_t kMostRanks = 16;
  const std::string text =
      collectives::groupText(group.group_name) + " of size " + std::to_string(group.size);
  const std::vector<int> ranks(group.global_ranks.begin(), group.global_ranks.end());
  if (ranks.empty() || ranks.size() > kMostRanks || ranks == collectives::allRanks(group.size))
    return text;
  return text + " (" + collectives::ranksAsText(ranks) + " of the default process group)";
}

Result<std::unique_ptr<collectives::EndpointMailbox>> openMailbox(const DelegateSpec& group,
                                                                  const std::string& interface,
                                                                  collectives::KeyValue& store,
                                                                  transport::Deadline deadline) {
  if (const std::string problem = environment::problem(); !problem.empty())
    return transport::invalidArgument(problem);
  const std::string wanted =
      interface.empty() ? environment::value(environment::kSocketIfname) : interface;
  auto listen = transport::chooseListenAddress(hostOf(group.store), wanted);
  if (!listen.ok()) return listen.error();
  collectives::MailboxOptions options;
  options.rank = group.rank;
  options.size = group.size;
  options.listen_address = listen.value().address;
  if (const std::string file = environment::value(environment::kAuthKeyFile); !file.empty()) {
    auto key = transport::AuthKey::fromFile(file);
    if (!key.ok()) return key.error();
    options.key = key.value();
  }
  if (Error error = transport::applyEnvironment(options, options.key.valid())) return error;
  if (options.certificates.any()) {
    // A rank has no name of its own.
    auto name = transport::certificateName(options.certificates.certificate);
    if (!name.ok()) return name.error();
    options.name = name.value();
  }
  return collectives::EndpointMailbox::join(options, store, deadline);
}

}  // namespace

Communicator::Communicator(const DelegateSpec& group, const std::string& interface,
                           MakeDelegate make_delegate)
    : rank_(group.rank) {
  const int size = group.size;
  TORCH_CHECK(size > 0 && rank_ >= 0 && rank_ < size, "weft: rank ", rank_,
              " is out of range for a process group of size ", size);
  TORCH_CHECK(group.timeout.count() > 0, "weft: the timeout must be positive, got ",
              group.timeout.count(), " ms");
  const auto deadline = transport::deadlineAfter(group.timeout);
  const std::string group_title = titleOf(group), title = "weft: " + group_title;
  StoreKeyValue meeting(c10::make_intrusive<c10d::PrefixStore>("weft/", group.store), group_title);
  const auto epoch = collectives::agreeOnEpoch(meeting, rank_, size, deadline);
  if (!epoch.ok()) throwAsTorch(title.c_str(), epoch.error());
  // Another group of these ranks in the same part of torch's Store has another epoch.
  DelegateSpec own = group;
  own.store = c10::make_intrusive<c10d::PrefixStore>("weft/" + epoch.value() + "/", group.store);
  auto key_value = std::make_unique<StoreKeyValue>(own.store, group_title);
  auto joined = openMailbox(group, interface, *key_value, deadline);
  if (!joined.ok()) throwAsTorch(title.c_str(), joined.error());
  const std::shared_ptr<collectives::EndpointMailbox> mailbox = std::move(joined).value();
  auto made = collectives::makeCollectives(mailbox, *key_value, deadline);
  if (!made.ok()) throwAsTorch(title.c_str(), made.error());
  path_ = made.value().path;
  if (transport::logEnabled(transport::LogLevel::kDebug)) {
    transport::log(transport::LogLevel::kDebug,
                   collectives::groupText(group.group_name) + ": rank " + std::to_string(rank_) +
                       " of " + std::to_string(size) + ", collectives by " + path_);
  }
  engine_ = std::make_shared<Engine>(std::move(made.value().collectives), std::move(key_value));
  messages_ = std::make_shared<PointToPoint>(mailbox);
  delegates_ = std::make_shared<Delegates>(std::move(make_delegate), std::move(own));
}

Communicator::~Communicator() {
  if (!engine_->inOwnProcess()) {
    // The threads and sockets are the parent's: never freed here.
    static_cast<void>(new auto(std::move(engine_)));
    static_cast<void>(new auto(std::move(messages_)));
    static_cast<void>(new auto(std::move(delegates_)));
    return;
  }
  const std::lock_guard lock(shutdown_mutex_);
  if (shut_down_ && !delegates_->any()) return;
  // The mailbox's end waits for its thread, which may wait for the GIL, which the thread that drops
  // the last reference may hold; a delegate's end likewise. So they end on a thread of their own;
  // where none can be started they stay until the process ends.
  struct Parts {
    decltype(delegates_) delegates;  // the last to go
    decltype(engine_) engine;
    decltype(messages_) messages;
  };
  auto* const parts = new Parts{std::move(delegates_), std::move(engine_), std::move(messages_)};
  const auto thrown =
      transport::thrownBy([parts] { std::thread([parts] { delete parts; }).detach(); });
  if (!thrown) return;
  transport::log(transport::LogLevel::kWarning,
                 "a process group is left as it is, because no thread can be started to end it (" +
                     *thrown + ")");
}

void Communicator::abort() {
  if (!engine_->inOwnProcess()) return;
  const Error reason(ErrorCode::kShutdown,
                     "the process group was aborted on rank " + std::to_string(rank_));
  engine_->abort(reason);
  messages_->abort(reason);
  delegates_->abort();
}

void Communicator::shutdown() {
  if (!engine_->inOwnProcess()) return;
  const std::lock_guard lock(shutdown_mutex_);
  if (shut_down_) return;
  shut_down_ = true;
  engine_->close(kLinger);
  messages_->close();
  delegates_->shutdown();
}

}  // namespace weft::process_group
