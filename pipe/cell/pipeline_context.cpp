#include "pipe/cell/pipeline_context.h"

#include <algorithm>
#include <map>
#include <string>

namespace weft::pipe {

PipelineContext::PipelineContext(std::vector<std::shared_ptr<Stage>> the_stages,
                                 std::vector<c10::Device> the_devices,
                                 std::vector<SkipRoute> the_routes, ThreadHooks hooks)
    : stages(std::move(the_stages)),
      devices(std::move(the_devices)),
      crosses(std::adjacent_find(devices.begin(), devices.end(), std::not_equal_to<>()) !=
              devices.end()),
      accelerated(std::any_of(devices.begin(), devices.end(), isAccelerator)),
      compiled(std::any_of(stages.begin(), stages.end(),
                           [](const auto& stage) { return stage->isCompiled(); })),
      routes(std::move(the_routes)),
      incoming(stages.size()),
      outgoing(stages.size()),
      consumers(stages.size()),
      traits(stages.size()),
      in_use(stages.size()) {
  std::map<std::string, std::size_t> worker_of_device;
  for (const c10::Device device : devices) {
    if (!isAccelerator(device)) {
      worker_of.push_back(workers++);
      continue;
    }
    const auto [it, is_new] = worker_of_device.emplace(device.str(), workers);
    if (is_new) ++workers;
    worker_of.push_back(it->second);
  }
  for (std::size_t route = 0; route < routes.size(); ++route) {
    if (routes[route].from == routes[route].to) continue;
    outgoing[routes[route].from].push_back(route);
    consumers[routes[route].from].push_back(routes[route].to);
    incoming[routes[route].to].push_back(route);
  }
  watchRandomOperators();
  executor = std::make_unique<StageExecutor>("weft-pipe-", workers, std::move(hooks));
}

const DeviceCopier& PipelineContext::copier() {
  std::call_once(copier_made_, [&] { copier_ = std::make_unique<DeviceCopier>(devices); });
  return *copier_;
}

}  // namespace weft::pipe
