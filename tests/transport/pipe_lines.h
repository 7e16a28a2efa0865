// Lines of text through a pipe: how the tests' processes tell each other their addresses.
#pragma once

#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

namespace weft::transport {

inline void writeLine(int fd, const std::string& text) {
  const std::string line = text + "\n";
  EXPECT_EQ(::write(fd, line.data(), line.size()), static_cast<ssize_t>(line.size()));
}

// What has come until the line, or the pipe, ends.
inline std::string readLine(int fd) {
  std::string text;
  char c = 0;
  while (::read(fd, &c, 1) == 1 && c != '\n')
    text.push_back(c);
  return text;
}

}  // namespace weft::transport
