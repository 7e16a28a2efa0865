// Ranks as forked processes: real ones, that can be killed. And as threads of one process, where a
// thread sanitizer sees all of them.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "c10d_plugin/shm/shm_collectives.h"
#include "c10d_plugin/store/key_value.h"
#include "transport/auth/auth_key.h"

#include "tests/support/waiting.h"

namespace weft::collectives::testing {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

inline Deadline in(milliseconds time) { return Clock::now() + time; }

// A folder of files, one per key.
class FolderStore : public KeyValue {
 public:
  explicit FolderStore(std::filesystem::path folder) : folder_(std::move(folder)) {}

  Error set(const std::string& key, const std::string& value) override {
    const auto temporary = pathOf(key).string() + "." + std::to_string(::getpid());
    std::ofstream(temporary) << value;
    std::filesystem::rename(temporary, pathOf(key));
    return Error::ok();
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    std::ifstream file;
    const auto opens = [&] {
      file.open(pathOf(key));
      return file.is_open();
    };
    if (!waitUntil(opens, deadline - Clock::now()))
      return Error(ErrorCode::kTimeout, "nobody set " + key);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }

 private:
  std::filesystem::path pathOf(std::string key) const {
    for (char& letter : key) {
      if (letter == '/') letter = '_';
    }
    return folder_ / key;
  }
  std::filesystem::path folder_;
};

// A folder of the test's own, gone with it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-shm-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Child processes, killed when this goes.
class Children {
 public:
  ~Children() {
    for (const pid_t child : running_) {
      if (child > 0) ::kill(child, SIGKILL);
    }
    for (const pid_t child : running_) {
      if (child > 0) ::waitpid(child, nullptr, 0);
    }
  }
  // The child runs `body` and exits with its result.
  void start(const std::function<int()>& body) {
    std::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      const int status = body();
      std::fflush(nullptr);
      ::_exit(status);
    }
    running_.push_back(child);
  }
  void kill(std::size_t index) { ::kill(running_[index], SIGKILL); }
  // Exit status; 128 + signal; -1 when it did not end in time.
  int wait(std::size_t index, milliseconds limit) {
    int status = 0;
    const auto ended = [&] {
      return ::waitpid(running_[index], &status, WNOHANG) == running_[index];
    };
    if (!waitUntil(ended, limit)) return -1;
    running_[index] = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  pid_t pid(std::size_t index) const { return running_[index]; }

 private:
  std::vector<pid_t> running_;
};

inline transport::AuthKey groupKey(char digit = 'c') {
  return transport::AuthKey::fromHex(std::string(64, digit)).value();
}

using Body = std::function<int(Collectives&)>;

// One process per rank, joined. The body's result is the exit status.
inline void startRanks(Children& children, const TemporaryFolder& folder, int size,
                       const ShmOptions& options, const Body& body) {
  for (int rank = 0; rank < size; ++rank) {
    children.start([&, rank] {
      FolderStore store(folder.path());
      auto joined = ShmCollectives::join(options, groupKey(), store, rank, size, in(seconds(30)));
      if (!joined.ok()) {
        std::fprintf(stderr, "rank %d: %s\n", rank, joined.error().text().c_str());
        return 99;
      }
      return body(*joined.value());
    });
  }
}

// Starts them and waits for all; how many failed.
inline int runInProcesses(int size, const ShmOptions& options, const Body& body) {
  const TemporaryFolder folder;
  Children children;
  startRanks(children, folder, size, options, body);
  int failures = 0;
  for (int rank = 0; rank < size; ++rank) {
    const int status = children.wait(static_cast<std::size_t>(rank), seconds(150));
    if (status != 0) std::fprintf(stderr, "rank %d ended with %d\n", rank, status);
    failures += status == 0 ? 0 : 1;
  }
  return failures;
}

// Many pieces of everything.
inline ShmOptions tiny() {
  ShmOptions options;
  options.buffer_bytes = 8192;
  options.small_bytes = 4096;
  return options;
}

}  // namespace weft::collectives::testing
