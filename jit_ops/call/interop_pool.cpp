#include "jit_ops/call/interop_pool.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/thread_name.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <system_error>
#include <utility>

#include "rpc_backend/core/log.h"

namespace weft::ops {

namespace {

thread_local InteropPool* pool_of_thread = nullptr;

// Whether torch's pool is Weft's.
std::atomic<bool> in_place{false};
// The waits in a pool that is torch's own.
std::atomic<int> counted_waits{0};

std::shared_ptr<c10::TaskThreadPoolBase> makePool(int /*device*/, int size, bool /*create_new*/) {
  in_place = true;
  return std::make_shared<InteropPool>(size);
}

// A task's error has nowhere to go: what is launched reports its own.
void runTask(const std::function<void()>& task) noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    rpc::logWarning(std::string("a task of the inter-op pool threw: ") + error.what());
  } catch (...) {
    rpc::logWarning("a task of the inter-op pool threw something other than a std::exception");
  }
}

}  // namespace

void installInteropPool() {
  c10::ThreadPoolRegistry()->Register("C10", makePool, c10::REGISTRY_PREFERRED);
}

InteropPool::InteropPool(int size)
    : size_(size < 0 ? defaultNumThreads() : static_cast<std::size_t>(size)) {
  const std::lock_guard lock(mutex_);
  while (threads_.size() < size_)
    start();
}

InteropPool::~InteropPool() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    // A task may end the process.
    if (thread.get_id() == std::this_thread::get_id()) {
      thread.detach();
    } else {
      thread.join();
    }
  }
}

InteropPool* InteropPool::ofThisThread() noexcept { return pool_of_thread; }

size_t InteropPool::numAvailable() const {
  const std::lock_guard lock(mutex_);
  return size_ - std::min(running_, size_);
}

void InteropPool::run(std::function<void()> task) {
  TORCH_CHECK(size_ > 0, "No threads to run a task");
  {
    const std::lock_guard lock(mutex_);
    tasks_.push(std::move(task));
  }
  changed_.notify_one();
}

void InteropPool::pause() {
  {
    const std::lock_guard lock(mutex_);
    // After the end no task begins any more.
    if (!ended_ && threads_.size() - paused_ <= size_) start();
    ++paused_;
    --running_;
  }
  changed_.notify_one();
}

void InteropPool::resume() {
  const std::lock_guard lock(mutex_);
  --paused_;
  ++running_;
}

void InteropPool::start() {
  threads_.emplace_back([this] { work(); });
}

void InteropPool::work() {
  pool_of_thread = this;
  c10::setThreadName("PTThreadPool");  // as torch's
  at::init_num_threads();
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ended_ || (!tasks_.empty() && running_ < size_); });
    if (ended_) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop();
    ++running_;
    lock.unlock();
    runTask(task);
    task = nullptr;
    lock.lock();
    --running_;
  }
}

namespace {

// Threads can be added.
void pauseIn(InteropPool& pool, const std::string& what) try {
  pool.pause();
} catch (const std::system_error& error) {
  TORCH_CHECK(false, "cannot wait for ", what, ": no further thread can be started (", error.what(),
              "): let fewer backwards run at once");
}

// None can be added.
void countWait(const std::string& what) {
  const int threads = at::get_num_interop_threads();
  if (++counted_waits < threads) return;
  --counted_waits;
  TORCH_CHECK(false, "cannot wait for ", what, ": that would take the last of the ", threads,
              " inter-op threads, which torch started before Weft was loaded: import weft before "
              "the program's first torch.jit.fork or distributed backward, or raise "
              "torch.set_num_interop_threads()");
}

}  // namespace

ScopedPoolWait::ScopedPoolWait(const std::string& what)
    : pool_(InteropPool::ofThisThread()), counted_(pool_ == nullptr && !in_place) {
  if (pool_ != nullptr) pauseIn(*pool_, what);
  if (counted_) countWait(what);
}

ScopedPoolWait::~ScopedPoolWait() {
  if (pool_ != nullptr) pool_->resume();
  if (counted_) --counted_waits;
}

}  // namespace weft::ops
