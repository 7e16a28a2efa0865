// "--name value" on the command line.
#pragma once

#include <cstdlib>
#include <string>

inline std::string flag(int argc, char** argv, const std::string& name, std::string fallback) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (argv[i] == name) fallback = argv[i + 1];
  }
  return fallback;
}

inline int flag(int argc, char** argv, const std::string& name, int fallback) {
  return std::atoi(flag(argc, argv, name, std::to_string(fallback)).c_str());
}
