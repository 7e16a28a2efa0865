#include "pipe/engine/pipeline_context.h"

#include <algorithm>
#include <functional>
#include <map>
#include <string>

namespace weft::pipe {

Machine::Machine(std::vector<std::shared_ptr<Stage>> the_stages,
                 std::vector<c10::Device> the_devices, std::vector<SkipRoute> the_routes,
                 ThreadHooks hooks)
    : stages(std::move(the_stages)),
      devices(std::move(the_devices)),
      crosses(std::adjacent_find(devices.begin(), devices.end(), std::not_equal_to<>()) !=
              devices.end()),
      accelerated(std::any_of(devices.begin(), devices.end(), isAccelerator)),
      routes(std::move(the_routes)),
      incoming(stages.size()),
      outgoing(stages.size()),
      habits(stages.size()),
      in_use(stages.size()) {
  std::map<std::string, std::size_t> lane_of_device;
  for (const c10::Device device : devices) {
    if (!isAccelerator(device)) {
      lane_of.push_back(lanes++);
      continue;
    }
    const auto [it, is_new] = lane_of_device.emplace(device.str(), lanes);
    if (is_new) ++lanes;
    lane_of.push_back(it->second);
  }
  for (std::size_t route = 0; route < routes.size(); ++route) {
    if (routes[route].from == routes[route].to) continue;
    outgoing[routes[route].from].push_back(route);
    incoming[routes[route].to].push_back(route);
  }
  watchRandomOperators();
  crew = std::make_unique<Crew>("weft-pipe-", lanes, std::move(hooks));
}

const Ferry* Machine::ferry() {
  if (!crosses || !accelerated) return nullptr;
  std::call_once(ferry_made_, [&] { ferry_ = std::make_unique<Ferry>(devices); });
  return ferry_.get();
}

}  // namespace weft::pipe
