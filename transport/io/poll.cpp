#include "transport/io/poll.h"

#include <uv.h>

#include <utility>

#include "transport/io/event_loop.h"
#include "transport/io/loop_callback.h"
#include "transport/io/timer.h"

namespace weft::transport {

struct Poll::State {
  uv_poll_t handle{};
  EventLoop* loop = nullptr;
  Callback callback;
  int wanted = 0;
};

Poll::Poll(EventLoop& loop, int fd, Callback callback) {
  loop.assertInLoop();
  auto state = std::make_unique<State>();
  state->loop = &loop;
  state->handle.data = state.get();
  const int status = uv_poll_init(loop.uv(), &state->handle, fd);
  if (status != 0) {
    // The kernel has no room for another watch, or no such descriptor.
    cannot_ = std::make_unique<Timer>(loop, [callback = std::move(callback), status] {
      callback({false, false, -status});
    });
    return;
  }
  state->callback = std::move(callback);
  state_ = state.release();
}

Poll::~Poll() {
  if (state_ == nullptr) return;
  state_->loop->assertInLoop();
  closeThenDelete(state_);
}

void Poll::want(bool readable, bool writable) {
  if (cannot_ != nullptr) {
    return readable || writable ? cannot_->start(std::chrono::milliseconds(0)) : cannot_->cancel();
  }
  state_->loop->assertInLoop();
  const int wanted = (readable ? UV_READABLE : 0) | (writable ? UV_WRITABLE : 0);
  if (wanted == state_->wanted) return;
  state_->wanted = wanted;
  if (wanted == 0) {
    uv_poll_stop(&state_->handle);
    return;
  }
  uv_poll_start(&state_->handle, wanted, [](uv_poll_t* handle, int status, int events) {
    auto* state = static_cast<State*>(handle->data);
    state->loop->noteWork();
    if (status < 0) state->wanted = 0;  // libuv has stopped it
    const Ready ready{(events & UV_READABLE) != 0, (events & UV_WRITABLE) != 0,
                      status < 0 ? -status : 0};
    if (runGuarded("a poll", [&] { state->callback(ready); })) return;
    if (uv_is_closing(reinterpret_cast<uv_handle_t*>(handle)) != 0) return;
    uv_poll_stop(handle);
    state->wanted = 0;
  });
}

}  // namespace weft::transport
