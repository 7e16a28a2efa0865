// WeftBackend hands everything that concerns tensors on another device to that device's backend. No
// accelerator is needed for that: the tensors are torch's "meta" ones, the backend notes its calls.
#include "c10d_plugin/backend/backend.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <functional>
#include <stdexcept>
#include <thread>

namespace weft::process_group {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class NotedWork final : public c10d::Work {
 public:
  bool wait(std::chrono::milliseconds) override { return true; }
};

class NotingBackend final : public c10d::Backend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Lists = std::vector<Tensors>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  NotingBackend(int rank, int size) : c10d::Backend(rank, size) {}

  const std::string getBackendName() const override { return "noting"; }
  std::vector<std::string> notes;
  WorkPtr last;
  c10d::ErrorType error = c10d::ErrorType::SUCCESS;

  WorkPtr note(const char* what) {
    notes.emplace_back(what);
    return last = c10::make_intrusive<NotedWork>();
  }
  std::vector<std::string> take() { return std::exchange(notes, {}); }

  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override { return note("broadcast"); }
  WorkPtr allreduce(Tensors&, const c10d::AllreduceOptions&) override { return note("allreduce"); }
  WorkPtr allreduce_sparse(Tensors&, const c10d::AllreduceOptions&) override {
    return note("sparse");
  }
  WorkPtr allreduce_coalesced(Tensors&, const c10d::AllreduceCoalescedOptions&) override {
    return note("allreduce_coalesced");
  }
  WorkPtr reduce(Tensors&, const c10d::ReduceOptions&) override { return note("reduce"); }
  WorkPtr allgather(Lists&, Tensors&, const c10d::AllgatherOptions&) override {
    return note("allgather");
  }
  WorkPtr _allgather_base(at::Tensor&, at::Tensor&, const c10d::AllgatherOptions&) override {
    return note("allgather_base");
  }
  WorkPtr allgather_coalesced(Lists&, Tensors&, const c10d::AllgatherOptions&) override {
    return note("allgather_coalesced");
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors&, Tensors&,
                                          const c10d::AllgatherOptions&) override {
    return note("allgather_into");
  }
  WorkPtr gather(Lists&, Tensors&, const c10d::GatherOptions&) override { return note("gather"); }
  WorkPtr scatter(Tensors&, Lists&, const c10d::ScatterOptions&) override {
    return note("scatter");
  }
  WorkPtr reduce_scatter(Tensors&, Lists&, const c10d::ReduceScatterOptions&) override {
    return note("reduce_scatter");
  }
  WorkPtr _reduce_scatter_base(at::Tensor&, at::Tensor&,
                               const c10d::ReduceScatterOptions&) override {
    return note("reduce_scatter_base");
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors&, Tensors&,
                                          const c10d::ReduceScatterOptions&) override {
    return note("reduce_scatter_coalesced");
  }
  WorkPtr alltoall_base(at::Tensor&, at::Tensor&, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    return note("alltoall_base");
  }
  WorkPtr alltoall(Tensors&, Tensors&, const c10d::AllToAllOptions&) override {
    return note("alltoall");
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return note("barrier"); }
  WorkPtr send(Tensors&, int, int) override { return note("send"); }
  WorkPtr recv(Tensors&, int, int) override { return note("recv"); }
  WorkPtr recvAnysource(Tensors&, int) override { return note("recv_any"); }
  void startCoalescing() override { note("start"); }
  WorkPtr endCoalescing() override { return note("end"); }
  void setTimeout(std::chrono::milliseconds) override { note("timeout"); }
  void setSequenceNumberForGroup() override { note("set sequence"); }
  uint64_t getSequenceNumberForGroup() override { return 100; }
  void eagerConnectSingleDevice(at::Device) override { note("connect"); }
  c10d::ErrorType getError() override { return error; }
  void abort() override { note("abort"); }
  void shutdown() override { note("shutdown"); }
};

class Delegate : public testing::Test {
 protected:
  Delegate() {
    auto options = c10::make_intrusive<WeftBackend::Options>(std::chrono::seconds(20));
    options->group_name = "a group";
    options->make_delegate = [this](const DelegateSpec& spec) {
      specs.push_back(spec);
      if (fail) throw std::runtime_error("no such device here");
      if (!spec.device.is_meta()) return c10::intrusive_ptr<c10d::Backend>();
      meanwhile();
      noting = c10::make_intrusive<NotingBackend>(spec.rank, spec.size);
      return c10::intrusive_ptr<c10d::Backend>(noting);
    };
    backend = c10::make_intrusive<WeftBackend>(store, 0, 1, options);
  }
  ~Delegate() override { backend->shutdown(); }

  static at::Tensor on(c10::DeviceType device) {
    return at::empty({4}, at::TensorOptions().device(device));
  }

  c10::intrusive_ptr<c10d::HashStore> store = c10::make_intrusive<c10d::HashStore>();
  std::vector<DelegateSpec> specs;
  c10::intrusive_ptr<NotingBackend> noting;
  bool fail = false;
  std::function<void()> meanwhile = [] {};  // while one is made
  c10::intrusive_ptr<WeftBackend> backend;
  std::vector<at::Tensor> here{on(c10::DeviceType::CPU)}, there{on(c10::DeviceType::Meta)};
};

TEST_F(Delegate, IsMadeByTheFirstTensorOfItsDevice) {
  backend->setGroupUid("the uid");
  backend->allreduce(here, {})->wait();
  EXPECT_THAT(specs, IsEmpty());
  EXPECT_EQ(backend->delegate(c10::DeviceType::Meta), nullptr);
  backend->setTimeout(std::chrono::seconds(7));
  backend->allreduce(there, {});
  backend->allreduce(there, {});
  ASSERT_EQ(specs.size(), 1U);
  EXPECT_EQ(specs[0].rank, 0);
  EXPECT_EQ(specs[0].size, 1);
  EXPECT_EQ(specs[0].timeout, std::chrono::seconds(7));
  EXPECT_EQ(specs[0].group_name, "a group");
  EXPECT_NE(specs[0].store, nullptr);
  EXPECT_EQ(noting->getGroupUid(), "the uid");
  EXPECT_EQ(backend->delegate(c10::DeviceType::Meta).get(), noting.get());
}

TEST_F(Delegate, HearsWhatTheGroupIsToldWhileItIsMade) {
  meanwhile = [&] {
    backend->setTimeout(std::chrono::seconds(7));
    backend->setGroupUid("the uid");
  };
  backend->allreduce(there, {});
  EXPECT_THAT(noting->take(), ElementsAre("timeout", "allreduce"));
  EXPECT_EQ(noting->getGroupUid(), "the uid");
}

TEST_F(Delegate, HasTheGroupsDescription) {
  for (const char* description : {"", "replicas"}) {  // torch may set it at any time
    backend->setGroupDesc(description);
    backend->allreduce(there, {});
    EXPECT_EQ(noting->getGroupDesc(), description);
  }
}

TEST_F(Delegate, EndsWithAGroupThatEndsWhileItIsMade) {
  meanwhile = [&] { backend->abort(); };
  EXPECT_THROW(backend->allreduce(there, {}), c10::Error);
  EXPECT_THAT(noting->take(), ElementsAre("abort"));
}

TEST_F(Delegate, GetsEveryOperation) {
  std::vector<std::vector<at::Tensor>> lists{there};
  std::vector<int64_t> splits;
  at::Tensor& one = there.front();
  backend->broadcast(there, {});
  backend->allreduce(there, {});
  backend->allreduce_sparse(there, {});
  backend->allreduce_coalesced(there, {});
  backend->reduce(there, {});
  backend->allgather(lists, there, {});
  backend->_allgather_base(one, one, {});
  backend->allgather_coalesced(lists, there, {});
  backend->allgather_into_tensor_coalesced(there, there, {});
  backend->gather(lists, there, {});
  backend->scatter(there, lists, {});
  backend->reduce_scatter(there, lists, {});
  backend->_reduce_scatter_base(one, one, {});
  backend->reduce_scatter_tensor_coalesced(there, there, {});
  backend->alltoall_base(one, one, splits, splits, {});
  backend->alltoall(there, there, {});
  backend->send(there, 0, 0);
  backend->recv(there, 0, 0);
  backend->recvAnysource(there, 0);
  EXPECT_THAT(
      noting->take(),
      ElementsAre("broadcast", "allreduce", "sparse", "allreduce_coalesced", "reduce", "allgather",
                  "allgather_base", "allgather_coalesced", "allgather_into", "gather", "scatter",
                  "reduce_scatter", "reduce_scatter_base", "reduce_scatter_coalesced",
                  "alltoall_base", "alltoall", "send", "recv", "recv_any"));
}

TEST_F(Delegate, CoalescesWhatIsItsOwn) {
  backend->allreduce(there, {});
  noting->take();
  // Nothing of it between the two: it hears of neither.
  backend->startCoalescing();
  backend->allreduce(here, {});
  backend->endCoalescing()->wait();
  EXPECT_THAT(noting->take(), IsEmpty());
  // All of it: the Work is its own.
  backend->startCoalescing();
  backend->allreduce(there, {});
  backend->broadcast(there, {});
  const auto work = backend->endCoalescing();
  EXPECT_THAT(noting->take(), ElementsAre("start", "allreduce", "broadcast", "end"));
  EXPECT_EQ(work.get(), noting->last.get());
  // Both.
  backend->startCoalescing();
  backend->allreduce(here, {});
  backend->allreduce(there, {});
  backend->endCoalescing()->wait();
  EXPECT_THAT(noting->take(), ElementsAre("start", "allreduce", "end"));
  // Afterwards it is as before.
  backend->allreduce(there, {});
  EXPECT_THAT(noting->take(), ElementsAre("allreduce"));
}

TEST_F(Delegate, CoalescesForOneThreadAtATime) {
  backend->startCoalescing();
  backend->allreduce(there, {});
  std::thread([&] {
    backend->startCoalescing();
    EXPECT_THROW(backend->allreduce(there, {}), c10::Error);
    backend->allreduce(here, {});
    backend->endCoalescing()->wait();
  }).join();
  EXPECT_THAT(noting->take(), ElementsAre("start", "allreduce"));
  const auto work = backend->endCoalescing();
  EXPECT_EQ(work.get(), noting->last.get());
  EXPECT_THAT(noting->take(), ElementsAre("end"));
}

TEST_F(Delegate, SharesTheGroupsLife) {
  EXPECT_EQ(backend->getSequenceNumberForGroup(), 0U);
  backend->eagerConnectSingleDevice(at::Device(c10::DeviceType::CPU));
  EXPECT_EQ(noting, nullptr);
  backend->eagerConnectSingleDevice(at::Device(c10::DeviceType::Meta, 0));
  EXPECT_THAT(noting->take(), ElementsAre("connect"));
  EXPECT_EQ(backend->getSequenceNumberForGroup(), 100U);
  backend->setSequenceNumberForGroup();
  backend->setTimeout(std::chrono::seconds(3));
  EXPECT_EQ(backend->getError(), c10d::ErrorType::SUCCESS);
  noting->error = c10d::ErrorType::TIMEOUT;
  EXPECT_EQ(backend->getError(), c10d::ErrorType::COMM_ERROR);
  backend->abort();
  EXPECT_THAT(noting->take(), ElementsAre("set sequence", "timeout", "abort"));
  EXPECT_THROW(backend->allreduce(there, {}), c10::Error);
  backend->shutdown();
  EXPECT_THAT(noting->take(), ElementsAre("shutdown"));
}

TEST_F(Delegate, IsMadeAnewForASplit) {
  backend->allreduce(there, {});
  const auto parent = noting;
  const auto child = backend->split(store, {0}, nullptr);
  child->allreduce(there, {});
  ASSERT_EQ(specs.size(), 2U);
  EXPECT_NE(parent.get(), noting.get());
  EXPECT_THAT(noting->take(), ElementsAre("allreduce"));
  child->shutdown();
  EXPECT_THAT(noting->take(), ElementsAre("shutdown"));
  EXPECT_THAT(parent->take(), ElementsAre("allreduce"));
}

TEST_F(Delegate, ThatCannotBeMadeIsAnErrorThatChangesNothing) {
  fail = true;
  EXPECT_THROW(backend->allreduce(there, {}), std::runtime_error);
  backend->allreduce(here, {})->wait();
  fail = false;
  backend->allreduce(there, {});
  EXPECT_THAT(noting->take(), ElementsAre("allreduce"));
}

TEST(NoDelegate, IsSaid) {
  auto backend = c10::make_intrusive<WeftBackend>(
      c10::make_intrusive<c10d::HashStore>(), 0, 1,
      c10::make_intrusive<WeftBackend::Options>(std::chrono::seconds(20)));
  std::vector<at::Tensor> there{at::empty({4}, at::TensorOptions().device(c10::DeviceType::Meta))};
  try {
    backend->allreduce(there, {});
    FAIL() << "taken";
  } catch (const c10::Error& error) {
    EXPECT_THAT(error.what_without_backtrace(),
                testing::HasSubstr("no backend for tensors on meta"));
  }
  backend->shutdown();
}

}  // namespace
}  // namespace weft::process_group
