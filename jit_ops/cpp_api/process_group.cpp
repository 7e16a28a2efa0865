// Made as torch.distributed.init_process_group makes it (distributed_c10d.py, 2.11): the same
// prefixes in the store, so that ranks in Python find these.
#include "jit_ops/process_group.h"

#include <c10/util/Exception.h>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <map>
#include <mutex>
#include <utility>

#include "c10d_plugin/backend/backend.h"
#include "jit_ops/cpp_api/rendezvous.h"
#include "jit_ops/serve/plain_errors.h"

namespace weft {

namespace {

using GroupPtr = c10::intrusive_ptr<c10d::ProcessGroup>;

// torch's registry of names does not own what it names. Never destroyed: a program that ends
// without leaving must not join threads while it exits.
struct Owned {
  std::mutex mutex;
  std::map<std::string, GroupPtr> groups;
};

Owned& owned() {
  static auto* one = new Owned;
  return *one;
}

bool isTaken(const std::string& name) {
  try {
    return c10d::resolve_process_group(name) != nullptr;
  } catch (const std::exception&) {  // how the registry says no
    return false;
  }
}

JoinOptions toJoin(const ProcessGroupOptions& options) {
  JoinOptions join;
  join.name = options.name;
  join.rank = options.rank;
  if (options.size > 0) join.world_size = options.size;
  if (!options.store) join.init_method = options.init_method;
  join.store = options.store;
  join.rpc.rpcTimeoutSeconds = std::chrono::duration<float>(options.timeout).count();
  ops::fillFromEnvironment(join, /*may_be_dynamic=*/false);
  TORCH_CHECK(join.world_size.has_value(),
              "the process group has no size: set ProcessGroupOptions::size or WORLD_SIZE");
  return join;
}

}  // namespace

GroupPtr joinProcessGroup(ProcessGroupOptions options) try {
  using process_group::WeftBackend;
  TORCH_CHECK(!isTaken(options.name), "this process is in a process group named '", options.name,
              "' already; leave that first, or give another name");
  JoinOptions join = toJoin(options);
  const int size = *join.world_size;
  if (!join.store) join.store = ops::openStore(join);
  join.store->setTimeout(options.timeout);
  const auto prefixed = [](const std::string& prefix, c10::intrusive_ptr<c10d::Store> store) {
    return c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(store));
  };
  const auto store = prefixed(options.name + "/", prefixed("default_pg", join.store));
  auto backend_options = c10::make_intrusive<WeftBackend::Options>(options.timeout);
  backend_options->interface = options.interface;
  backend_options->group_name = options.name;
  for (int rank = 0; rank < size; ++rank)
    backend_options->global_ranks_in_group.push_back(static_cast<std::uint64_t>(rank));
  const c10::intrusive_ptr<c10d::Backend> backend = c10::make_intrusive<WeftBackend>(
      prefixed("cpu/", store), join.rank, size, std::move(backend_options));

  auto group = c10::make_intrusive<c10d::ProcessGroup>(store, join.rank, size);
  constexpr auto kCustom = c10d::ProcessGroup::BackendType::CUSTOM;
  group->setDefaultBackend(kCustom);
  for (const auto device : {c10::DeviceType::CPU, c10::DeviceType::CUDA})
    group->setBackend(device, kCustom, backend);
  group->setGroupName(options.name);
  c10d::register_process_group(options.name, group);
  GroupPtr former = group;  // let go of without the lock
  const std::lock_guard lock(owned().mutex);
  std::swap(owned().groups[options.name], former);
  return group;
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

void leaveProcessGroup(const std::string& name) try {
  GroupPtr group;
  {
    const std::lock_guard lock(owned().mutex);
    const auto found = owned().groups.find(name);
    TORCH_CHECK(found != owned().groups.end(), "no process group named '", name,
                "' was joined by joinProcessGroup");
    group = std::move(found->second);
    owned().groups.erase(found);
  }
  c10d::unregister_process_group(name);
  group->shutdown();
} catch (const c10::Error& error) {
  ops::throwWithoutStack(error);
}

}  // namespace weft
