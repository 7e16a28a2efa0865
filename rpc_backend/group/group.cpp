#include "rpc_backend/group/group.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "rpc_backend/core/future_wait.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/group/device_map_rules.h"
#include "rpc_backend/group/shutdown_barrier.h"
#include "transport/auth/encryption_settings.h"
#include "transport/base/environment.h"
#include "transport/base/parse_number.h"
#include "transport/base/peer_name.h"
#include "transport/io/address.h"

namespace weft::rpc {

namespace {

constexpr milliseconds kControlTimeout{10000};
constexpr const char* kBarriersKey = "barriers";

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
      membership_(std::move(store), context.name, context.rank, world_size.value_or(0)) {}

GroupSecret Group::secret() {
  const std::string& file = context_.options.auth_key_file;
  return membership_.secret(file.empty() ? environment::value(environment::kAuthKeyFile) : file);
}

MemberRecord Group::ownRecord(const GroupSecret& secret) const {
  MemberRecord record;
  record.rank = context_.rank;
  record.world = world_size_.value_or(0);
  record.name = context_.name;
  record.auth = secret.auth;
  record.key_check = secret.key_check;
  record.policy = toString(context_.options.request_policy);
  record.address = sender_.endpoint()->address();
  record.device_count = device_count_;
  record.devices = context_.options.devices;
  record.device_maps = context_.options.device_maps;
  return record;
}

void Group::join(const GroupSecret& secret) {
  const MemberRecord self = ownRecord(secret);
  directory_.add(context_.name, context_.rank);
  std::vector<MemberRecord> all = isStatic() ? membership_.meet(self) : membership_.join(self);
  for (const MemberRecord& member : all)
    admit(member);
  if (secret.auth == "store" && spansHosts(all, self)) transport::warnOfKeyInStore();
  all.push_back(self);
  // Every worker finds the same fault first.
  std::sort(all.begin(), all.end(),
            [](const MemberRecord& a, const MemberRecord& b) { return a.rank < b.rank; });
  checkDeviceMaps(all, isStatic());
  {
    const std::lock_guard lock(mutex_);
    reverse_maps_ = reverseMaps(all, context_.name);
    devices_ = devicesInUse(context_.options.devices, context_.options.device_maps, reverse_maps_);
  }
  const auto store = membership_.store();
  if (hasReturned() && isStatic() && store->check({kBarriersKey})) {
    const std::string text = store->get_to_str(kBarriersKey);
    const auto passed = transport::parseNumber<int>(text);
    TORCH_CHECK(passed && *passed >= 0, context_.me(),
                ": the Store's count of the group's barriers is malformed: '", text.substr(0, 32),
                "'");
    barriers_.store(*passed);
  }
}

void Group::admit(const MemberRecord& member) {
  const auto error = sender_.endpoint()->addPeer({member.rank, member.name, member.address});
  TORCH_CHECK(!error, context_.me(), " cannot take in worker '", member.name, "' (rank ",
              member.rank, "): ", error.text());
  const auto id = static_cast<worker_id_t>(member.rank);
  directory_.add(member.name, id);
  if (transport::logEnabled(transport::LogLevel::kDebug))
    logDebug(describe(id) + " is in the group, at " + member.address);
  const std::lock_guard lock(mutex_);
  if (const auto loss = losses_.find(id); loss != losses_.end()) loss->second.back = true;
  std::erase_if(members_, [&](const MemberRecord& known) { return known.rank == member.rank; });
  members_.push_back(member);
  // The devices are fixed when the agent is made; only the maps follow the group.
  reverse_maps_ = reverseMaps(members_, context_.name);
}

void Group::dismiss(worker_id_t member) {
  directory_.remove(member);
  const std::lock_guard lock(mutex_);
  std::erase_if(members_, [&](const MemberRecord& known) { return known.rank == member; });
  reverse_maps_ = reverseMaps(members_, context_.name);
}

std::vector<MemberRecord> Group::members() const {
  const std::lock_guard lock(mutex_);
  return members_;
}

void Group::announce() {
  if (isStatic() && !hasReturned()) return;
  const std::string text = ownRecord({}).toText();
  std::vector<std::pair<MemberRecord, FuturePtr>> acks;
  for (const MemberRecord& member : members()) {
    const auto id = static_cast<worker_id_t>(member.rank);
    acks.emplace_back(member, call_(id, ControlType::kJoin, text, joinTimeout()));
  }
  for (auto& [member, ack] : acks) {
    awaitInterruptibly(*ack);
    ack->wait();
    if (!ack->hasError()) continue;
    const std::string reason = ack->tryRetrieveErrorMessage();
    if (isStatic()) {
      logInfo(context_.me() + " is back, but could not tell worker '" + member.name +
              "': " + reason);
      continue;
    }
    const auto id = static_cast<worker_id_t>(member.rank);
    if (isRefusedBy(id)) {
      leave();
      TORCH_CHECK(false, context_.me(), " cannot join: ", reason);
    }
    // It died without leaving, or dies now: the group goes on without it.
    logWarning(context_.me() + " could not reach worker '" + member.name +
               "' while joining: " + reason + " It is taken off the group's list.");
    membership_.forget(member.rank, member.address);
    directory_.remove(id);
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
  for (auto& ack : acks) {
    awaitInterruptibly(*ack);
    ack->wait();
  }
}

std::vector<std::int32_t> Group::barrier(milliseconds timeout, bool last) {
  TORCH_CHECK(isStatic(), context_.me(), ": only a group of fixed size has a barrier");
  const int index = barriers_.fetch_add(1);
  ShutdownBarrier barrier(context_, *this, membership_.store(), index, *world_size_, timeout);
  barrier.waitForCalls();
  const auto lost = barrier.agreeOnLost();
  membership_.store()->set(kBarriersKey, std::to_string(index + 1));
  barrier.confirm();
  for (const std::int32_t rank : lost) {
    if (rank == context_.rank) continue;
    const auto id = static_cast<worker_id_t>(rank);
    logWarning("rpc.shutdown went on without a missing worker: " +
               lossOf(id).value_or(describe(id) + " is lost to another worker"));
  }
  if (last) barrier.linger(fromSeconds(context_.options.peer_timeout));
  return {lost.begin(), lost.end()};
}

void Group::ping(worker_id_t peer) { call_(peer, ControlType::kPing, "", kControlTimeout); }

std::string Group::describe(worker_id_t id) const {
  return transport::describePeer(directory_.nameOf(id), id);
}

bool Group::everyoneServesPython() const {
  const std::string any = toString(RequestPolicy::kAny);
  const std::lock_guard lock(mutex_);
  return context_.options.request_policy == RequestPolicy::kAny &&
         std::all_of(members_.begin(), members_.end(),
                     [&](const MemberRecord& member) { return member.policy == any; });
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
  const std::lock_guard lock(mutex_);
  const auto found = reverse_maps_.find(peer);
  return found == reverse_maps_.end() ? DeviceMap{} : found->second;
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
  try {
    // After a restart the worker itself says where it listens now.
    if (isStatic()) sender_.endpoint()->setPeerAddress(from, record->address);
    admit(*record);
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

void Group::noteLoss(worker_id_t peer, const transport::Error& why) {
  const std::lock_guard lock(mutex_);
  const auto known = losses_.find(peer);
  if (known != losses_.end() && !known->second.back) return;  // of the same loss
  const bool refused = why.code() == transport::ErrorCode::kAuthFailed ||
                       why.code() == transport::ErrorCode::kDuplicate;
  losses_[peer] = {why.text(), refused, false, Clock::now(), std::nullopt};
}

Group::Clock::duration Group::noteReturn(worker_id_t peer) {
  Clock::duration outage{};
  {
    const std::lock_guard lock(mutex_);
    Loss& loss = losses_[peer];
    outage = Clock::now() - loss.since;
    loss.back = true;
    loss.outage = outage;
  }
  updateList(peer);
  return outage;
}

void Group::noteDisplaced(worker_id_t peer, const transport::Error& why) {
  {
    const std::lock_guard lock(mutex_);
    Loss& loss = losses_[peer];
    loss.reason = why.text();
    loss.refused = true;
  }
  updateList(peer);
}

void Group::forgetUnlessMember(worker_id_t peer) {
  if (isStatic()) return;
  {
    const std::lock_guard lock(mutex_);
    const auto is_it = [&](const MemberRecord& member) { return member.rank == peer; };
    if (std::any_of(members_.begin(), members_.end(), is_it)) return;
  }
  directory_.remove(peer);
  sender_.endpoint()->removePeer(peer);
}

std::optional<Group::Clock::duration> Group::lastOutageOf(worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = losses_.find(id);
  return found == losses_.end() ? std::nullopt : found->second.outage;
}

bool Group::isRefusedBy(worker_id_t peer) const {
  const std::lock_guard lock(mutex_);
  const auto found = losses_.find(peer);
  return found != losses_.end() && found->second.refused && !found->second.back;
}

std::optional<std::string> Group::lossOf(worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = losses_.find(id);
  if (found == losses_.end() || found->second.back) return std::nullopt;
  return found->second.reason;
}

std::optional<std::string> Group::lastLossOf(worker_id_t id) const {
  const std::lock_guard lock(mutex_);
  const auto found = losses_.find(id);
  return found == losses_.end() ? std::nullopt : std::optional(found->second.reason);
}

void Group::updateList(worker_id_t peer) {
  // A worker that has left is no longer in the directory.
  if (isStatic() || context_.closing || !directory_.contains(peer)) return;
  context_.completers.run([this, alive = context_.keepAlive(), peer] {
    try {
      // One that refuses this worker lives, and stays a member.
      const auto is_dead = [&] { return lossOf(peer).has_value() && !isRefusedBy(peer); };
      // Another task may change the list meanwhile: what holds at the end counts.
      bool dead = false;
      do {
        dead = is_dead();
        for (const MemberRecord& member : members()) {
          if (member.rank != peer) continue;
          dead ? membership_.forget(member.rank, member.address) : membership_.restore(member);
        }
      } while (dead != is_dead());
    } catch (const std::exception& error) {
      logInfo("the group's list of workers could not be changed: " + std::string(error.what()));
    }
  });
}

}  // namespace weft::rpc
