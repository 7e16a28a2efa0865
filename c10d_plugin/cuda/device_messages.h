// DeviceMessages: send and recv between ranks of one host, through device memory of the sender that
// the receiver has mapped.
//
// The messages between two ranks go one way in the order of the calls, in chunks that alternate
// between two slots; a small send ends without the receiver. Tags are compared, not searched for: a
// receive with another tag fails.
//
// Threads: any; each direction to each rank has a queue and a stream of its own, so sends and
// receives never wait for each other. Failure: as a Meeting's; a message of another size, type or
// tag fails its receive and is consumed. What else fails while a message is copied ends the group.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>

#include "c10d_plugin/cuda/device/device_queue.h"
#include "c10d_plugin/cuda/device/meeting.h"

namespace weft::process_group {

class DeviceMessages {
 public:
  using WorkPtr = c10::intrusive_ptr<DeviceWork>;

  DeviceMessages(c10::DeviceIndex device, std::shared_ptr<Meeting> meeting);
  // Leaks what other ranks may still read, unless release() was called.
  ~DeviceMessages();

  WorkPtr send(const at::Tensor& tensor, int to, int tag, std::chrono::milliseconds timeout);
  WorkPtr receive(const at::Tensor& tensor, int from, int tag, std::chrono::milliseconds timeout);

  // Refuses further messages; false where some are still under way after `limit`.
  bool close(std::chrono::milliseconds limit);
  // Frees the memory: all ranks are done with it.
  void release();

 private:
  struct Sender;
  struct Receiver;
  template <typename Channel>
  std::shared_ptr<Channel> channel(std::map<int, std::shared_ptr<Channel>>& channels, int peer);
  template <typename Function>
  void each(Function&& function);

  const c10::DeviceIndex device_;
  const std::shared_ptr<Meeting> meeting_;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<Sender>> senders_;
  std::map<int, std::shared_ptr<Receiver>> receivers_;
};

}  // namespace weft::process_group
