#include "rpc_backend/group/group.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/group/device_map_rules.h"
#include "rpc_backend/group/shutdown_barrier.h"
#include "transport/base/environment.h"
#include "transport/base/peer_name.h"
#include "transport/environment_options.h"
#include "transport/io/address.h"

namespace weft::rpc {

namespace {

constexpr milliseconds kControlTimeout{10000};

// Longer than a connection may take: what becomes of it tells a member that refuses this worker
// from a dead one.
milliseconds joinTimeout() {
  return transport::EndpointOptions{}.connect_timeout + kControlTimeout;
}

bool spansHosts(const std::vector<MemberRecord>& others, const MemberRecord& self) {
  const auto hostOf = [](const MemberRecord& member) {
    const auto address = transport::parseAddress(member.address);
    return address.ok() ? address.value().host : std::string();
  };
  return std::any_of(others.begin(), others.end(), [&, host = hostOf(self)](const auto& member) {
    return hostOf(member) != host;
  });
}

}  // namespace

Group::Group(AgentContext& context, MessageSender& sender, ControlCall call,
             c10::intrusive_ptr<c10d::Store> store, std::optional<int> world_size, int device_count)
    : context_(context),
      sender_(sender),
      call_(std::move(call)),
      world_size_(world_size),
      device_count_(device_count),
      membership_(std::move(store), context.name, context.rank, world_size.value_or(0)),
      members_(context.name),
      live_list_(context, membership_, self_, members_, losses_,
                 [this](const MemberRecord& newcomer) { introduce(newcomer); }) {}

transport::GroupSecret Group::secret() {
  const std::string& file = context_.options.auth_key_file;
  return membership_.secret(file.empty() ? environment::value(environment::kAuthKeyFile) : file);
}

MemberRecord Group::ownRecord(const transport::GroupSecret& secret) const {
  MemberRecord record;
  record.rank = context_.rank;
  record.world = world_size_.value_or(0);
  record.name = context_.name;
  record.policy = toString(context_.options.request_policy);
  record.address = sender_.endpoint()->address();
  record.device_count = device_count_;
  record.devices = context_.options.devices;
  record.device_maps = context_.options.device_maps;
  record.auth = secret.from_file ? "file" : "store";
  if (secret.from_file) record.key_check = transport::keyCheck(secret.key, secret.group_id);
  return record;
}

void Group::join(const transport::GroupSecret& secret) {
  self_ = ownRecord(secret);
  directory_.add(context_.name, context_.rank);
  std::vector<MemberRecord> all = isStatic() ? membership_.meet(self_) : membership_.join(self_);
  for (const MemberRecord& member : all)
    admit(member);
  if (!secret.from_file && spansHosts(all, self_)) transport::warnOfKeyInStore();
  all.push_back(self_);
  // Every worker finds the same fault first.
  std::sort(all.begin(), all.end(),
            [](const MemberRecord& a, const MemberRecord& b) { return a.rank < b.rank; });
  checkDeviceMaps(all, isStatic());
  devices_ = devicesInUse(context_.options.devices, context_.options.device_maps,
                          reverseMaps(all, context_.name));
  if (wasRestarted() && isStatic())
    barriers_ = ShutdownBarrier::passedBy(*membership_.store(), context_.me());
}

void Group::admit(const MemberRecord& member) {
  const auto error = sender_.endpoint()->addPeer({member.rank, member.name, member.address});
  TORCH_CHECK(!error, context_.me(), " cannot admit worker '", member.name, "' (rank ", member.rank,
              "): ", error.text());
  const auto id = static_cast<worker_id_t>(member.rank);
  directory_.add(member.name, id);
  if (transport::logEnabled(transport::LogLevel::kDebug))
    logDebug(describe(id) + " is in the group, at " + member.address);
  // In this order, because updateList() may run in between. It then restores the old record, which
  // does nothing where the new one is listed. In the other order it would take the new record off
  // the list.
  losses_.setBack(id);
  members_.add(member);
}

void Group::dismiss(worker_id_t member) {
  directory_.remove(member);
  members_.remove(member);
}

FuturePtr Group::introduceSelf(worker_id_t member) {
  return call_(member, ControlType::kJoin, self_.toText(), joinTimeout());
}

void Group::introduce(const MemberRecord& newcomer) {
  admit(newcomer);
  const auto id = static_cast<worker_id_t>(newcomer.rank);
  introduceSelf(id)->addCallback([who = describe(id)](JitFuture& ack) {
    if (ack.hasError())
      logInfo("could not tell " + who + " of this worker: " + ack.tryRetrieveErrorMessage());
  });
}

void Group::announce() {
  if (isStatic() && !wasRestarted()) return;
  std::vector<std::pair<MemberRecord, FuturePtr>> acks;
  for (const MemberRecord& member : members_.all())
    acks.emplace_back(member, introduceSelf(static_cast<worker_id_t>(member.rank)));
  for (auto& [member, ack] : acks) {
    awaitInterruptibly(*ack);
    if (!ack->hasError()) continue;
    const std::string reason = ack->tryRetrieveErrorMessage();
    if (isStatic()) {
      logInfo(context_.me() + " is back, but could not tell worker '" + member.name +
              "': " + reason);
      continue;
    }
    const auto id = static_cast<worker_id_t>(member.rank);
    if (losses_.refusesUs(id)) {
      leave();
      TORCH_CHECK(false, context_.me(), " cannot join: ", reason);
    }
    // It died without leaving, or dies now: the group goes on without it.
    logWarning(context_.me() + " could not reach worker '" + member.name +
               "' while joining, so it is taken off the group's list: " + reason);
    membership_.forget(member.rank, member.address);
    dismiss(id);
    sender_.endpoint()->removePeer(member.rank);
  }
}

void Group::leave() {
  membership_.forget(context_.rank, sender_.endpoint()->address());
  const auto timeout = fromSeconds(context_.options.peer_timeout);
  std::vector<FuturePtr> acks;
  for (const auto& worker : directory_.all()) {
    if (worker.id_ == context_.rank || lossOf(worker.id_)) continue;
    acks.push_back(call_(worker.id_, ControlType::kLeave, "", timeout));
  }
  // After an error the peer is gone too, or sees the connection end: either way it knows.
  for (auto& ack : acks)
    awaitInterruptibly(*ack);
}

void Group::withdraw() noexcept {
  if (isStatic() || self_.address.empty()) return;
  try {
    membership_.withdraw(self_.address);
  } catch (const std::exception& error) {
    logInfo(context_.me() +
            " could not take itself off the group's list of workers: " + error.what());
  }
}

std::vector<std::int32_t> Group::barrier(milliseconds timeout, bool last) {
  TORCH_CHECK(isStatic(), context_.me(),
              ": only a static group, which has a world_size, has a barrier");
  ShutdownBarrier barrier(context_, *this, membership_.store(), barriers_.load(), *world_size_,
                          timeout);
  auto lost_or_new = barrier.pass(last);
  barriers_.fetch_add(1);  // one that was given up is what the others still wait in
  return lost_or_new;
}

void Group::ping(worker_id_t peer) { call_(peer, ControlType::kPing, "", kControlTimeout); }

std::string Group::describe(worker_id_t id) const {
  return transport::describePeer(directory_.nameOf(id), id);
}

bool Group::everyoneServesPython() const {
  return context_.options.request_policy == RequestPolicy::kAny &&
         members_.allHavePolicy(toString(RequestPolicy::kAny));
}

DeviceMap Group::requestMap(const std::string& peer) const {
  const DeviceMaps& maps = context_.options.device_maps;
  const auto found = maps.find(peer);
  return found == maps.end() ? DeviceMap{} : found->second;
}

DeviceMap Group::answerMap(const std::string& peer) const {
  if (peer == context_.name) {
    DeviceMap back;
    for (const auto& [from, to] : requestMap(peer))
      back.insert_or_assign(to, from);
    return back;
  }
  return members_.reverseMap(peer);
}

std::string Group::serveControl(worker_id_t from, ControlType type, const std::string& text) {
  switch (type) {
    case ControlType::kPing:
      return {};
    case ControlType::kLeave:
      dismiss(from);
      return {};
    case ControlType::kJoin:
      break;
    default:
      return context_.me() + " does not know control message " +
             std::to_string(static_cast<int>(type));
  }
  const auto record = MemberRecord::fromText(text);
  if (!record || record->rank != from) {
    return "the join message of rank " + std::to_string(from) + " is malformed";
  }
  if (record->wire != MemberRecord().wire) {
    return context_.me() + " and " + describe(from) +
           " speak different versions of Weft's protocol (" + std::to_string(MemberRecord().wire) +
           " and " + std::to_string(record->wire) + "); install the same Weft on all";
  }
  try {
    // After a restart the worker itself says where it listens now.
    if (isStatic()) sender_.endpoint()->setPeerAddress(from, record->address);
    admit(*record);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

Group::Clock::duration Group::noteReturn(worker_id_t peer) {
  const auto outage = losses_.endOutage(peer);
  updateList(peer);
  return outage;
}

void Group::noteDisplaced(worker_id_t peer, const transport::Error& why) {
  losses_.setRefusesUs(peer, why);
  updateList(peer);
}

void Group::forgetUnlessMember(worker_id_t peer) {
  if (isStatic() || members_.contains(peer)) return;
  directory_.remove(peer);
  sender_.endpoint()->removePeer(peer);
}

void Group::updateList(worker_id_t peer) {
  // A worker that has left is no longer in the directory.
  if (isStatic() || context_.closed() || !directory_.contains(peer)) return;
  live_list_.update(peer);
}

}  // namespace weft::rpc
