#include "rpc_backend/serve/callback/script_streams.h"

#include <ATen/core/jit_type.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <stdexcept>

namespace weft::rpc {

namespace {

using Streams = std::vector<c10::Stream>;

FuturePtr futureOn(const Streams& streams, c10::TypePtr type) {
  std::vector<c10::Device> devices;
  devices.reserve(streams.size());
  for (const c10::Stream& stream : streams)
    devices.push_back(stream.device());
  return c10::make_intrusive<JitFuture>(std::move(type), std::move(devices));
}

void waitFor(const c10::Stream& other, const c10::Stream& stream) {
  if (other == stream) return;
  c10::Event event(stream.device_type());
  event.record(other);
  event.block(stream);
}

c10::Stream defaultStreamOf(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getDefaultStream(device);
}

// An interpreter that was suspended goes on in another thread, on that thread's streams.
void waitForCurrent(const Streams& streams) {
  for (const c10::Stream& stream : streams) {
    const c10::impl::VirtualGuardImpl device(stream.device_type());
    waitFor(device.getStream(stream.device()), stream);
  }
}

void settle(const FuturePtr& result, JitFuture& done, const Streams& streams) {
  if (done.hasError()) {
    result->setError(done.exception_ptr());
    return;
  }
  waitForCurrent(streams);
  const c10::MultiStreamGuard guard(streams);
  result->markCompleted(done.value());
}

}  // namespace

FuturePtr onStreams(const FuturePtr& made, const Streams& streams) {
  if (streams.empty() || !made->devices().empty()) return made;
  auto result = futureOn(streams, made->elementType());
  made->addCallback([result, streams](JitFuture& done) { settle(result, done, streams); });
  return result;
}

Streams defaultStreamsAfter(const Streams& streams, const std::vector<c10::IValue>& arguments) {
  const auto ready = futureOn(streams, at::AnyType::get());
  {
    const c10::MultiStreamGuard guard(streams);
    ready->markCompleted(c10::ivalue::Tuple::create(arguments));
  }
  Streams defaults;
  for (const c10::Stream& stream : streams)
    defaults.push_back(defaultStreamOf(stream.device()));
  const c10::MultiStreamGuard guard(defaults);
  ready->wait();
  return defaults;
}

FuturePtr innerOnStreams(const FuturePtr& made, const Streams& streams) {
  const auto type = made->elementType()->cast<c10::FutureType>();
  auto result = futureOn(streams, type == nullptr ? made->elementType() : type->getElementType());
  if (type == nullptr) {
    const auto text = "Async functions must return an IValue of Future type, but got " +
                      made->elementType()->str();
    result->setError(std::make_exception_ptr(std::runtime_error(text)));
    return result;
  }
  made->addCallback([result, streams](JitFuture& outer) {
    if (outer.hasError()) {
      result->setError(outer.exception_ptr());
      return;
    }
    outer.value().toFuture()->addCallback([result, streams](JitFuture& done) {
      for (const c10::Stream& stream : streams)
        waitFor(defaultStreamOf(stream.device()), stream);
      settle(result, done, streams);
    });
  });
  return result;
}

}  // namespace weft::rpc
