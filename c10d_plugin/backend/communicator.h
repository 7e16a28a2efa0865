// Communicator: one rank's part in a group: the Engine of its collectives, its messages, and its
// Delegates for other devices. They begin and end together.
//
// Threads: any thread may call any member. In a forked child abort() and shutdown() do nothing, and
// the destructor leaves all to the parent.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "c10d_plugin/backend/delegates.h"

namespace weft::process_group {

class Engine;
class PointToPoint;

class Communicator {
 public:
  // Meets the other ranks through `group`.store, within its timeout, and logs which are missing
  // while it waits. Throws c10::DistBackendError. `interface`: WeftBackend::Options's.
  Communicator(const DelegateSpec& group, const std::string& interface, MakeDelegate make_delegate);
  // Does not wait: running operations go on until their own end.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  Engine& engine() const noexcept { return *engine_; }
  PointToPoint& messages() const noexcept { return *messages_; }
  Delegates& delegates() const noexcept { return *delegates_; }
  // How the data travel: "alone", "shared memory", "messages", …; for logs and tests.
  const std::string& path() const noexcept { return path_; }

  // Fails the running operation and all later ones, here and on the ranks that wait for this one.
  void abort();
  // Waits for running operations (10 s at most), then ends the group here. May be called again.
  void shutdown();

 private:
  const int rank_;
  std::string path_;
  std::shared_ptr<Engine> engine_;
  std::shared_ptr<PointToPoint> messages_;
  std::shared_ptr<Delegates> delegates_;
  std::mutex shutdown_mutex_;
  bool shut_down_ = false;
};

}  // namespace weft::process_group
