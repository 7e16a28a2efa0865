// Two endpoints, each of which reaches the other through a proxy only.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "tests/transport/proxy.h"
#include "tests/transport/recorder.h"

namespace weft::transport {

struct Between {
  explicit Between(Via via, const std::function<void(EndpointOptions&)>& adjust = {},
                   const std::function<void(Between&)>& prepare = {}) {
    if (prepare) prepare(*this);
    EndpointOptions options0 = optionsFor(0, via);
    EndpointOptions options1 = optionsFor(1, via);
    options0.peer_timeout = options1.peer_timeout = std::chrono::hours(1);
    options0.reconnect_timeout = options1.reconnect_timeout = kPatience;
    options0.bulk.threshold = options1.bulk.threshold = 50'000;
    if (adjust) {
      adjust(options0);
      adjust(options1);
    }
    a = openEndpoint(options0, first);
    b = openEndpoint(options1, second);
    to_a = std::make_unique<Proxy>(a->address());
    to_b = std::make_unique<Proxy>(b->address());
    expectOk(a->addPeer({1, "worker1", to_b->address()}));
    expectOk(b->addPeer({0, "worker0", to_a->address()}));
  }
  ~Between() {
    a->close();
    b->close();
  }
  void breakAll() {
    to_a->breakAll();
    to_b->breakAll();
  }
  void swallowAll(bool all) {
    to_a->swallowAll(all);
    to_b->swallowAll(all);
  }
  void expectNobodyLost() {
    EXPECT_TRUE(first.losses().empty() && second.losses().empty())
        << (first.losses().empty() ? second.losses() : first.losses())[0].reason.text();
    EXPECT_TRUE(first.failed().empty() && second.failed().empty());
  }

  Recorder first;
  Recorder second;
  std::unique_ptr<Endpoint> a;  // rank 0
  std::unique_ptr<Endpoint> b;  // rank 1
  std::unique_ptr<Proxy> to_a;
  std::unique_ptr<Proxy> to_b;
};

}  // namespace weft::transport
