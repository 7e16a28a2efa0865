#include "pipe/machine.h"

#include <map>
#include <string>

namespace weft::pipe {

Machine::Machine(std::vector<std::shared_ptr<Stage>> the_stages,
                 std::vector<c10::Device> the_devices, std::vector<SkipRoute> the_routes,
                 ThreadHooks hooks)
    : stages(std::move(the_stages)),
      devices(std::move(the_devices)),
      routes(std::move(the_routes)),
      incoming(stages.size()),
      outgoing(stages.size()),
      habits(stages.size()) {
  std::map<std::string, std::size_t> lane_of_device;
  for (const c10::Device device : devices) {
    if (device.is_cpu() || device.is_meta()) {
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
  crew = std::make_unique<Crew>("weft-pipe-", lanes, std::move(hooks));
}

}  // namespace weft::pipe
