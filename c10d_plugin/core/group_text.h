// How errors and log lines name a process group.
#pragma once

#include <string>

namespace weft::collectives {

// "process group 'half'". torch names the default group "0", which its users never see.
inline std::string groupText(const std::string& name) {
  if (name.empty()) return "a process group without a name";
  return name == "0" ? "the default process group" : "process group '" + name + "'";
}

}  // namespace weft::collectives
