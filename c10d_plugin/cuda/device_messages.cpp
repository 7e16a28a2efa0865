#include "c10d_plugin/cuda/device_messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "c10d_plugin/cuda/device/device_memory.h"
#include "c10d_plugin/cuda/device/flat_call.h"
#include "c10d_plugin/cuda/device/handles.h"
#include "transport/base/deadline.h"

namespace weft::process_group {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

constexpr std::size_t kChunk = std::size_t{2} << 20;  // bytes of a slot

// Tags of the Meeting's messages.
constexpr int kOpenTag = 1;     // sender: its memory
constexpr int kAnswerTag = 2;   // receiver: its events
constexpr int kFilledTag = 3;   // sender: a slot is filled, or will be by then
constexpr int kDrainedTag = 4;  // receiver: a slot has been read, or will be by then

struct Opening {
  cudaIpcMemHandle_t memory{};
  SharedEvents::Handles filled{};
};

// A message's head, with every chunk of it.
struct Head {
  std::int64_t elements = 0;
  std::int64_t type = 0;
  std::int64_t tag = 0;

  std::int64_t bytes() const {
    return elements *
           static_cast<std::int64_t>(c10::elementSize(static_cast<c10::ScalarType>(type)));
  }
};

Head headOf(const at::Tensor& flat, int tag) {
  return {flat.numel(), static_cast<std::int64_t>(flat.scalar_type()), tag};
}

// Chunk `at` of a tensor of one dimension.
at::Tensor chunkOf(const at::Tensor& flat, std::int64_t at) {
  const auto most = static_cast<std::int64_t>(kChunk / flat.element_size());
  return flat.narrow(0, at * most, std::min(most, flat.numel() - at * most));
}

std::int64_t chunksIn(const Head& head) {
  const auto most =
      static_cast<std::int64_t>(kChunk / c10::elementSize(static_cast<c10::ScalarType>(head.type)));
  return std::max<std::int64_t>(1, (head.elements + most - 1) / most);
}

}  // namespace

// One way to one rank: the end that sends.
struct DeviceMessages::Sender {
  Sender(int peer, c10::DeviceIndex on, std::shared_ptr<Meeting> group)
      : to(peer),
        device(on),
        meeting(std::move(group)),
        queue(c10::cuda::getStreamFromPool(false, on), meeting) {}

  void open(const Step& step) {
    if (memory) return;
    auto made = std::make_unique<DeviceMemory>(device, 2 * kChunk);
    filled.emplace(device);
    meeting->send(to, kOpenTag, asWords(Opening{made->handle(), filled->handles()}), step);
    memory = std::move(made);
  }

  void beginFilling(const Step& step, const c10::cuda::CUDAStream& stream) {
    if (sent < 2) return;  // the first use of each slot
    if (!drained) {
      const auto words = meeting->receive(to, kAnswerTag, kWordsOf<SharedEvents::Handles>, step);
      drained.emplace(device, fromWords<SharedEvents::Handles>(words));
    }
    static_cast<void>(meeting->receive(to, kDrainedTag, 1, step));
    drained->block(sent % 2, stream);
  }

  // What throws leaves the two ranks with different chunks and slots.
  void send(const at::Tensor& flat, int tag, const Step& step,
            const c10::cuda::CUDAStream& stream) try {
    open(step);
    const Head head = headOf(flat, tag);
    for (std::int64_t at = 0; at < chunksIn(head); ++at) {
      const at::Tensor chunk = chunkOf(flat, at);
      beginFilling(step, stream);
      const std::size_t slot = sent++ % 2;
      memory->view(slot * kChunk, chunk.nbytes(), chunk.scalar_type()).copy_(chunk);
      filled->record(slot, stream);
      meeting->send(to, kFilledTag, asWords(head), step);
    }
  } catch (...) {
    meeting->breakOff(std::string(step.title) + " to rank " + std::to_string(to));
    throw;
  }

  const int to;
  const c10::DeviceIndex device;
  const std::shared_ptr<Meeting> meeting;
  std::unique_ptr<DeviceMemory> memory;
  std::optional<SharedEvents> filled, drained;
  std::size_t sent = 0;  // chunks
  DeviceQueue queue;
};

// The end that receives.
struct DeviceMessages::Receiver {
  Receiver(int peer, c10::DeviceIndex on, std::shared_ptr<Meeting> group)
      : from(peer),
        device(on),
        meeting(std::move(group)),
        queue(c10::cuda::getStreamFromPool(false, on), meeting) {}

  void open(const Step& step) {
    if (memory) return;
    const auto opening =
        fromWords<Opening>(meeting->receive(from, kOpenTag, kWordsOf<Opening>, step));
    auto opened = std::make_unique<DeviceMemory>(device, 2 * kChunk, opening.memory);
    filled.emplace(device, opening.filled);
    drained.emplace(device);
    meeting->send(from, kAnswerTag, asWords(drained->handles()), step);
    memory = std::move(opened);
  }

  Head head(const Step& step) {
    return fromWords<Head>(meeting->receive(from, kFilledTag, kWordsOf<Head>, step));
  }

  void receive(const at::Tensor& flat, int tag, const Step& step,
               const c10::cuda::CUDAStream& stream) {
    const Head wanted = headOf(flat, tag);
    Head got;
    bool alike = false;
    try {
      open(step);
      got = head(step);
      alike = std::memcmp(&wanted, &got, sizeof(Head)) == 0;
      for (std::int64_t at = 0; at < chunksIn(got); ++at) {
        if (at > 0) static_cast<void>(head(step));
        const std::size_t slot = received++ % 2;
        filled->block(slot, stream);
        if (alike) {
          const at::Tensor chunk = chunkOf(flat, at);
          chunk.copy_(memory->view(slot * kChunk, chunk.nbytes(), chunk.scalar_type()));
        }
        drained->record(slot, stream);
        meeting->send(from, kDrainedTag, {1}, step);
      }
    } catch (...) {
      meeting->breakOff(std::string(step.title) + " from rank " + std::to_string(from));
      throw;
    }
    TORCH_CHECK(alike, step.title, ": rank ", from, " sent ", got.elements, " elements of ",
                static_cast<c10::ScalarType>(got.type), " with tag ", got.tag, ", rank ",
                meeting->rank(), " receives ", wanted.elements, " of ", flat.scalar_type(),
                " with tag ", tag, "; CUDA messages are received in the order they were sent");
  }

  const int from;
  const c10::DeviceIndex device;
  const std::shared_ptr<Meeting> meeting;
  std::unique_ptr<DeviceMemory> memory;
  std::optional<SharedEvents> filled, drained;
  std::size_t received = 0;  // chunks
  DeviceQueue queue;
};

DeviceMessages::DeviceMessages(c10::DeviceIndex device, std::shared_ptr<Meeting> meeting)
    : device_(device), meeting_(std::move(meeting)) {}

DeviceMessages::~DeviceMessages() {
  each([](auto& channel) {
    channel->queue.close();
    static_cast<void>(new auto(channel));
  });
}

template <typename Function>
void DeviceMessages::each(Function&& function) {
  const std::lock_guard lock(mutex_);
  for (auto& [peer, channel] : senders_)
    function(channel);
  for (auto& [peer, channel] : receivers_)
    function(channel);
}

template <typename Channel>
std::shared_ptr<Channel> DeviceMessages::channel(std::map<int, std::shared_ptr<Channel>>& channels,
                                                 int peer) {
  const std::lock_guard lock(mutex_);
  auto& found = channels[peer];
  if (!found) found = std::make_shared<Channel>(peer, device_, meeting_);
  return found;
}

DeviceMessages::WorkPtr DeviceMessages::send(const at::Tensor& tensor, int to, int tag,
                                             milliseconds timeout) {
  constexpr const char* kTitle = "weft:send";
  FlatCall call(kTitle);
  const at::Tensor flat = call.reads(tensor);
  const Step step{kTitle, transport::deadlineAfter(timeout)};
  const auto sender = channel(senders_, to);
  return sender->queue.run(call.what(c10d::OpType::SEND),
                           [sender = sender.get(), flat, tag, step](const auto& stream) {
                             sender->send(flat, tag, step, stream);
                           });
}

DeviceMessages::WorkPtr DeviceMessages::receive(const at::Tensor& tensor, int from, int tag,
                                                milliseconds timeout) {
  constexpr const char* kTitle = "weft:recv";
  FlatCall call(kTitle);
  const at::Tensor flat = call.writes(tensor);
  const Step step{kTitle, transport::deadlineAfter(timeout)};
  const auto receiver = channel(receivers_, from);
  return receiver->queue.run(call.what(c10d::OpType::RECV), [receiver = receiver.get(), flat, tag,
                                                             step, call](const auto& stream) {
    receiver->receive(flat, tag, step, stream);
    call.writeBack();
  });
}

bool DeviceMessages::close(milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  const auto left = [&] {
    return std::max(milliseconds(1),
                    std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now()));
  };
  bool done = true;
  each([&](auto& channel) {
    done = channel->queue.drain(left()) && done;
    channel->queue.close();
    done = channel->queue.waitForThreads(left()) && done;
  });
  return done;
}

void DeviceMessages::release() {
  const std::lock_guard lock(mutex_);
  senders_.clear();
  receivers_.clear();
}

}  // namespace weft::process_group
