// libFuzzer: an agent's messages as a state machine: router, server and client, without sockets and
// without an RpcAgent. Peers send requests, answers and all kinds of control, also under numbers
// that are unknown or given twice; are cut off, lost, return, join and take each other's place.
// Meanwhile the agent calls them, gives up, and time passes. Each call ends once, no request is
// answered twice, and at the end nothing is held of any peer.
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "rpc_backend/agent/message_router.h"
#include "rpc_backend/core/log.h"
#include "rpc_backend/wire/wire_reader.h"
#include "rpc_backend/wire/wire_writer.h"
#include "tests/support/fuzz_input.h"

namespace {

using namespace weft::rpc;  // NOLINT(google-build-using-namespace)
using weft::testing::FuzzInput;
using weft::testing::require;
using weft::transport::Disposition;
using weft::transport::Error;
using weft::transport::ErrorCode;
using weft::transport::OwnedBuffer;
using weft::transport::PeerInfo;

constexpr int kSteps = 48;
constexpr worker_id_t kPeers = 3;  // ranks 1 to 3; this worker is rank 0
constexpr std::uint64_t kRoom = std::uint64_t{1} << 20;

// What is sent goes no further than here. Threads: any.
class Network final : public weft::transport::Endpoint {
 public:
  const std::string& address() const override { return address_; }
  Error addPeer(const PeerInfo& peer) override {
    return peer.rank == 3 && peer.name == "taken"
               ? Error(ErrorCode::kInvalidArgument, "it is taken")
               : Error::ok();
  }
  void setPeerAddress(std::int32_t, const std::string&) override {}
  void removePeer(std::int32_t) override {}
  void losePeer(std::int32_t rank, Error reason) override {
    const std::lock_guard lock(mutex_);
    cut_.emplace_back(rank, std::move(reason));
  }
  Error send(std::int32_t to, weft::transport::Message message,
             std::chrono::milliseconds) override {
    WireHeader head;
    require(WireReader(message.header).header(head));
    const std::lock_guard lock(mutex_);
    if (closed_ || gone_.contains(to)) return {ErrorCode::kPeerLost, "it is lost"};
    if (head.kind == WireKind::kResponse) require(--asked_[{to, head.call_id}] >= 0);
    return Error::ok();
  }
  void runAfter(std::chrono::milliseconds, std::function<void()> task) override {
    const std::lock_guard lock(mutex_);
    if (!closed_) tasks_.push_back(std::move(task));
  }
  bool onLoopThread() const noexcept override { return std::this_thread::get_id() == loop_; }
  weft::transport::Driven drive(weft::transport::Driver, const std::function<bool()>&,
                                weft::transport::Deadline,
                                weft::transport::AdaptiveSpin&) override {
    return weft::transport::Driven::kStopped;
  }
  void wakeDriver(weft::transport::Driver) override {}
  weft::transport::EndpointStats stats() const override { return {}; }
  void close(std::chrono::milliseconds) override {
    std::vector<std::function<void()>> dropped;  // destroyed without the lock
    const std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(tasks_);
  }

  // A request came, which may be answered once.
  void asked(worker_id_t from, std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    ++asked_[{from, id}];
  }
  void setGone(worker_id_t rank, bool gone) {
    const std::lock_guard lock(mutex_);
    gone ? static_cast<void>(gone_.insert(rank)) : static_cast<void>(gone_.erase(rank));
  }
  std::vector<std::function<void()>> takeTasks() {
    const std::lock_guard lock(mutex_);
    return std::exchange(tasks_, {});
  }
  std::vector<std::pair<std::int32_t, Error>> takeCut() {
    const std::lock_guard lock(mutex_);
    return std::exchange(cut_, {});
  }

 private:
  const std::string address_ = "weft1;tcp=127.0.0.1:9";
  const std::thread::id loop_ = std::this_thread::get_id();
  std::mutex mutex_;  // guards what follows
  bool closed_ = false;
  std::set<std::int32_t> gone_;
  std::map<std::pair<std::int32_t, std::uint64_t>, int> asked_;
  std::vector<std::function<void()>> tasks_;
  std::vector<std::pair<std::int32_t, Error>> cut_;
};

// Answers at once, throws, or leaves the answer to finish(), as the request's first byte says.
class Service final : public torch::distributed::rpc::RequestCallback {
 public:
  using Pending = std::vector<FuturePtr>;
  struct Later {
    std::mutex mutex;
    Pending pending;
  };
  explicit Service(std::shared_ptr<Later> later) : later_(std::move(later)) {}

  static MessagePtr answer() {
    return c10::make_intrusive<Message>(std::vector<char>{'a'}, std::vector<at::Tensor>{},
                                        MessageType::PYTHON_RET);
  }

 protected:
  FuturePtr processMessage(Message& request, std::vector<c10::Stream>) const override {
    const char first = request.payload().empty() ? '\0' : request.payload().front();
    if (first % 4 == 1) throw std::runtime_error("the function threw");
    auto future = c10::make_intrusive<JitFuture>(at::AnyClassType::get());
    if (first % 4 == 2) {
      const std::lock_guard lock(later_->mutex);
      later_->pending.push_back(future);
    } else {
      future->markCompleted(answer());
    }
    return future;
  }

 private:
  const std::shared_ptr<Later> later_;
};

WeftRpcBackendOptions optionsOf(FuzzInput& input) {
  WeftRpcBackendOptions options(60, "");
  options.num_worker_threads = 2;
  options.max_inflight_bytes = kRoom;
  options.request_policy = static_cast<RequestPolicy>(input.below(3));
  return options;
}

class Agent {
 public:
  explicit Agent(FuzzInput& input) : input_(input), context_("worker0", 0, optionsOf(input), {}) {
    context_.running = running_;
    context_.parts = alive_;
    sender_.use(network_);
    group_.directory().add("worker0", 0);
    for (worker_id_t rank = 1; rank <= kPeers; ++rank)
      group_.directory().add("worker" + std::to_string(rank), rank);
  }

  void run() {
    for (int i = 0; i < kSteps && !input_.empty(); ++i) {
      step();
      for (const auto& [rank, reason] : network_->takeCut())
        lose(static_cast<worker_id_t>(rank), reason);
    }
    end();
  }

 private:
  // A message between its header and its end.
  struct Arriving {
    std::vector<std::byte> header;
    std::vector<OwnedBuffer> buffers;
  };

  worker_id_t peer() { return static_cast<worker_id_t>(1 + input_.below(kPeers)); }

  void step() {
    switch (input_.below(14)) {
      case 0:
      case 1:
        return call();
      case 2:
        return finish(peer());
      case 3:
        return released_ ? answerLater() : release();
      case 4:
        return lose(peer(),
                    {input_.oneIn(3) ? ErrorCode::kPeerClosed : ErrorCode::kPeerLost, "it"});
      case 5:
        return giveUp();
      case 6:
        return comeBack(peer());
      case 7:
        for (const auto& task : network_->takeTasks())
          task();
        return;
      default:
        return announce(peer());
    }
  }

  // --- what the agent does ---

  void call() {
    constexpr MessageType kTypes[] = {MessageType::BACKWARD_AUTOGRAD_REQ,
                                      MessageType::RREF_BACKWARD_REQ,
                                      MessageType::RREF_USER_DELETE};
    const auto message =
        c10::make_intrusive<Message>(payload(), std::vector<at::Tensor>{}, kTypes[input_.below(3)]);
    const milliseconds timeout(input_.oneIn(4) ? 1 : 0);
    const auto ended = std::make_shared<std::atomic<int>>(0);
    ended_.push_back(ended);
    calls_.push_back(client_.send(peer(), message, timeout, {}));
    calls_.back()->addCallback([ended](JitFuture&) { require(++*ended == 1); });
  }

  void giveUp() {
    if (!calls_.empty()) client_.canceller().cancel(*calls_[input_.number() % calls_.size()]);
  }

  void release() {
    released_ = true;
    context_.phase = AgentContext::Phase::kServing;
    context_.workers.release();
  }

  void answerLater() {
    Service::Pending pending;
    {
      const std::lock_guard lock(later_->mutex);
      pending = std::exchange(later_->pending, {});
    }
    for (const FuturePtr& future : pending) {
      if (input_.oneIn(2)) {
        future->markCompleted(Service::answer());
      } else {
        future->setError(std::make_exception_ptr(std::runtime_error("it failed later")));
      }
    }
  }

  // --- what peers do ---

  // Any bytes, marks, or the ids that RRef messages consist of.
  std::vector<char> payload() {
    std::string text;
    if (input_.oneIn(3)) {
      text = input_.text(input_.below(32));
    } else if (input_.oneIn(4)) {
      text.assign(input_.below(64), '(');
    } else {
      // As torch's picklers write it: a value's id, a fork's id; some of them as a pickled RRef.
      const auto number = [&] { return std::string("K") + static_cast<char>(input_.below(4)); };
      text = input_.oneIn(2) ? "\x80\x02" : "(";
      for (std::size_t i = input_.oneIn(4) ? input_.below(8) : (text[0] == '(' ? 6 : 4); i > 0; --i)
        text += number();
      text += text[0] == '(' ? "X" : "\x86.";
    }
    return {text.begin(), text.end()};
  }

  std::string controlText(ControlType type, worker_id_t from) {
    if (input_.oneIn(4)) return input_.text(input_.below(40));
    if (type == ControlType::kCreationsLost) return std::to_string(input_.number<std::int16_t>());
    if (type == ControlType::kDeviceReturned) return std::to_string(input_.below(6));
    if (type != ControlType::kJoin) return {};
    MemberRecord record;
    record.rank =
        static_cast<std::int32_t>(input_.oneIn(8) ? input_.number<std::uint32_t>() : from);
    record.name = input_.oneIn(4) ? "taken" : "worker" + std::to_string(from);
    record.auth = "store";
    record.policy = "any";
    record.address = network_->address();
    if (input_.oneIn(4))
      record.device_maps["worker0"].insert_or_assign(c10::Device("cpu"), c10::Device("cpu"));
    return record.toText();
  }

  static std::uint16_t typeOf(WireKind kind, FuzzInput& input) {
    // Those that neither torch's unpickler nor its RRefContext reads: there is no agent here.
    constexpr MessageType kRequests[] = {
        MessageType::PYTHON_CALL,         MessageType::PYTHON_CALL,
        MessageType::PYTHON_REMOTE_CALL,  MessageType::BACKWARD_AUTOGRAD_REQ,
        MessageType::RREF_USER_DELETE,    MessageType::RREF_FORK_REQUEST,
        MessageType::RREF_CHILD_ACCEPT,   MessageType::RUN_WITH_PROFILING_REQ,
        MessageType::FORWARD_AUTOGRAD_REQ};
    constexpr MessageType kAnswers[] = {MessageType::PYTHON_RET, MessageType::REMOTE_RET,
                                        MessageType::RREF_ACK, MessageType::EXCEPTION,
                                        MessageType::BACKWARD_AUTOGRAD_RESP};
    if (kind == WireKind::kRequest)
      return static_cast<std::uint16_t>(kRequests[input.below(std::size(kRequests))]);
    if (kind == WireKind::kResponse)
      return static_cast<std::uint16_t>(kAnswers[input.below(std::size(kAnswers))]);
    return static_cast<std::uint16_t>(input.below(10));
  }

  void addTensors(WireWriter& writer, WireHeader& head, std::vector<std::uint64_t>& sizes) {
    for (std::uint32_t i = 0; i < head.tensor_count; ++i) {
      TensorMeta meta;
      meta.form = input_.oneIn(4) ? TensorForm::kUndefined : TensorForm::kDense;
      if (head.device_memory && input_.oneIn(2)) meta.form = TensorForm::kDevice;
      meta.dtype = static_cast<std::uint8_t>(c10::ScalarType::Byte);
      meta.ndim = 1;
      meta.sizes[0] = static_cast<std::int64_t>(
          input_.oneIn(8) ? input_.number<std::uint32_t>() % kRoom : input_.below(64));
      meta.strides[0] = 1;
      meta.bytes = static_cast<std::uint64_t>(meta.sizes[0]);
      if (meta.form == TensorForm::kDense) sizes.push_back(meta.bytes);
      writer.tensor(meta);
    }
  }

  // The header of a message comes, also in the place of one whose bytes did not come whole.
  void announce(worker_id_t from) {
    if (gone_[from]) return;
    Arriving next;
    std::vector<std::uint64_t> sizes;
    WireHeader head;
    head.kind = static_cast<WireKind>(1 + input_.below(4));
    head.type = typeOf(head.kind, input_);
    head.call_id = input_.below(12);
    const bool is_call = head.kind == WireKind::kRequest || head.kind == WireKind::kResponse;
    if (head.kind == WireKind::kRequest) head.timeout_ms = input_.oneIn(4) ? 1 : 0;
    std::string text;
    if (is_call) {
      const std::vector<char> some = payload();
      text.assign(some.begin(), some.end());
      head.tensor_count = static_cast<std::uint32_t>(input_.oneIn(3) ? input_.below(3) : 0);
      head.device_memory = input_.oneIn(8);
      head.staged = input_.oneIn(8);
      head.payload_inline = !input_.oneIn(6);
    } else {
      text = controlText(static_cast<ControlType>(head.type), from);
    }
    if (head.payload_inline) {
      head.payload = std::as_bytes(std::span(text));
    } else {
      sizes.push_back(text.size());
    }
    WireWriter writer(next.header);
    writer.header(head);
    addTensors(writer, head, sizes);
    if (head.device_memory) writer.deviceToken(input_.bytes(input_.below(8)));
    if (head.staged) sizes.push_back(1);
    if (input_.oneIn(32)) next.header[input_.number() % next.header.size()] = std::byte{7};
    // As it reads now: the byte above may be in the header.
    WireHeader sent;
    if (WireReader(next.header).header(sent) && sent.kind == WireKind::kRequest)
      network_->asked(from, sent.call_id);
    if (input_.oneIn(16)) {
      return router_.onTooLarge(from, next.header, {ErrorCode::kLimitExceeded, "it is too large"});
    }
    next.buffers.resize(sizes.size());
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (!input_.oneIn(6)) continue;
      const std::shared_ptr<std::byte[]> shared(new std::byte[sizes[i] + 1]());
      next.buffers[i] = {shared.get(), sizes[i], shared};
    }
    arriving_.erase(from);
    switch (router_.onHeader(from, next.header, sizes, next.buffers)) {
      case Disposition::kRefuse:
        return lose(from, {ErrorCode::kProtocol, "malformed"});
      case Disposition::kDiscard:
        return;
      case Disposition::kAccept:
        break;
    }
    static_cast<void>(router_.arrivals(from));
    for (std::size_t i = 0; i < sizes.size(); ++i)
      require(next.buffers[i].size == sizes[i] &&
              (sizes[i] == 0 || next.buffers[i].data != nullptr));
    arriving_.emplace(from, std::move(next));
    if (!input_.oneIn(4)) finish(from);
  }

  // The bytes come, and the message is whole.
  void finish(worker_id_t from) {
    auto whole = arriving_.extract(from);
    if (whole.empty()) return;
    for (const OwnedBuffer& buffer : whole.mapped().buffers)
      std::fill_n(buffer.data, buffer.size, std::byte{'('});
    router_.onMessage(from, whole.mapped().header, std::move(whole.mapped().buffers));
  }

  void lose(worker_id_t rank, const Error& reason) {
    if (rank < 1 || rank > kPeers || std::exchange(gone_[rank], true)) return;
    arriving_.erase(rank);
    network_->setGone(rank, true);
    router_.onPeerLost({rank, "worker" + std::to_string(rank), reason});
  }

  void comeBack(worker_id_t rank) {
    const PeerInfo info{rank, input_.oneIn(4) ? "worker1" : "worker" + std::to_string(rank), ""};
    if (!gone_[rank]) return;
    if (input_.oneIn(3))
      return router_.onDisplaced({rank, info.name, {ErrorCode::kAuthFailed, "it"}});
    gone_[rank] = false;
    network_->setGone(rank, false);
    input_.oneIn(2) ? router_.onPeerReturned(info) : router_.onPeerJoined(info);
  }

  // --- the end ---

  void end() {
    if (!released_) release();
    arriving_.clear();
    for (worker_id_t rank = 1; rank <= kPeers; ++rank)
      lose(rank, {ErrorCode::kPeerLost, "the end"});
    answerLater();
    context_.phase = AgentContext::Phase::kClosed;
    network_->close({});
    client_.close();
    context_.workers.stop(milliseconds(10000), WorkerPool::Waiting::kRun);
    answerLater();
    context_.stopThreads();
    sender_.devices().close();
    for (const auto& ended : ended_)
      require(*ended == 1);
    constexpr std::uint64_t kCostOfOne = 1024;
    for (worker_id_t rank = 1; rank <= kPeers; ++rank)
      require(server_.hold(rank, kRoom - kCostOfOne) != nullptr);
    alive_.reset();
  }

  FuzzInput& input_;
  std::shared_ptr<int> alive_ = std::make_shared<int>();
  const std::shared_ptr<const std::atomic<bool>> running_ =
      std::make_shared<const std::atomic<bool>>(true);
  const std::shared_ptr<Network> network_ = std::make_shared<Network>();
  const std::shared_ptr<Service::Later> later_ = std::make_shared<Service::Later>();
  AgentContext context_;
  MessageSender sender_{context_};
  Group group_{
      context_,
      sender_,
      [this](worker_id_t to, ControlType type, const std::string& text, milliseconds timeout) {
        return client_.callControl(to, type, text, timeout);
      },
      c10::make_intrusive<c10d::HashStore>(),
      std::nullopt,
      0};
  RRefService rrefs_{context_, sender_, group_, {}};
  RequestClient client_{context_, sender_, group_, rrefs_, {}};
  RequestServer server_{context_, sender_, group_,
                        rrefs_,   client_, std::make_unique<Service>(later_)};
  MessageRouter router_{context_, sender_, group_, rrefs_, client_, server_, nullptr};
  bool released_ = false;
  std::map<worker_id_t, bool> gone_;
  std::map<worker_id_t, Arriving> arriving_;
  std::vector<FuturePtr> calls_;
  std::vector<std::shared_ptr<std::atomic<int>>> ended_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  weft::transport::setLogSink([](LogLevel, const std::string&) {});  // of each input some lines
  FuzzInput input(data, size);
  Agent(input).run();
  return 0;
}
