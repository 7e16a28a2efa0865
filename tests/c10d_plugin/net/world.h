// Several ranks of one test: forked processes that meet through a folder.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "c10d_plugin/net/mailbox/endpoint_mailbox.h"
#include "c10d_plugin/store/key_value.h"
#include "gtest/gtest.h"

#include "tests/support/waiting.h"

namespace weft::collectives {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // everything takes ten times as long
#else
constexpr bool kSanitized = false;
#endif

// No test should come near it: it only keeps a broken one from hanging.
constexpr std::chrono::seconds kPatience{40};

inline std::chrono::steady_clock::time_point soon(std::chrono::milliseconds in = kPatience) {
  return std::chrono::steady_clock::now() + in;
}

// A file per key; written beside and renamed, so that whoever sees it sees all of it.
class FolderKeyValue final : public KeyValue {
 public:
  explicit FolderKeyValue(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_);
  }
  transport::Error set(const std::string& key, const std::string& value) override {
    const std::filesystem::path path = pathOf(key);
    const std::filesystem::path beside = path.string() + "." + std::to_string(::getpid());
    std::ofstream(beside) << value;
    std::filesystem::rename(beside, path);
    return transport::Error::ok();
  }
  transport::Result<std::string> get(const std::string& key,
                                     std::chrono::steady_clock::time_point deadline) override {
    const auto there = [&] { return std::filesystem::exists(pathOf(key)); };
    if (!waitUntil(there, deadline - std::chrono::steady_clock::now()))
      return transport::Error(transport::ErrorCode::kTimeout, "no key " + key);
    std::ostringstream out;
    out << std::ifstream(pathOf(key)).rdbuf();
    return out.str();
  }

 private:
  std::filesystem::path pathOf(std::string key) const {
    for (char& c : key)
      if (c == '/') c = '_';
    return folder_ / key;
  }
  const std::filesystem::path folder_;
};

// A folder that goes with the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-test-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Runs `body` in `size` processes and waits for them. A failed expectation in one fails the test.
// Ranks in `killed` are expected to die by a signal.
inline void runRanks(int size, const std::function<void(int, KeyValue&)>& body,
                     const std::set<int>& killed = {}) {
  const TemporaryFolder folder;
  std::vector<pid_t> children;
  std::cout.flush();
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      try {
        FolderKeyValue store(folder.path());
        body(rank, store);
      } catch (const std::exception& problem) {
        ADD_FAILURE() << "rank " << rank << ": " << problem.what();
      }
      std::cout.flush();
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  const auto until = soon(kPatience * 5);  // a sanitizer on a busy machine
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    const auto ended = [&] { return ::waitpid(children[rank], &status, WNOHANG) != 0; };
    if (!waitUntil(ended, until - std::chrono::steady_clock::now())) {
      ADD_FAILURE() << "rank " << rank << " hangs";
      for (int left = rank; left < size; ++left)
        ::kill(children[left], SIGKILL);
      for (int left = rank; left < size; ++left)
        ::waitpid(children[left], nullptr, 0);
      return;
    }
    if (killed.contains(rank)) {
      EXPECT_TRUE(WIFSIGNALED(status)) << "rank " << rank << " was to die";
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
          << "rank " << rank << " of " << size << " failed, status " << status;
    }
  }
}

// What a rank does whose other thread is about to end the process.
[[noreturn]] inline void awaitDeath() {
  for (;;)
    ::pause();
}

[[noreturn]] inline void die() {
  ::kill(::getpid(), SIGKILL);
  std::abort();
}

inline std::unique_ptr<EndpointMailbox> joinAs(
    int rank, int size, KeyValue& store, const std::function<void(MailboxOptions&)>& adjust = {}) {
  MailboxOptions options;
  options.rank = rank;
  options.size = size;
  if (adjust) adjust(options);
  auto joined = EndpointMailbox::join(options, store, soon());
  if (!joined.ok()) throw std::runtime_error(joined.error().text());
  return std::move(joined).value();
}

inline void say(KeyValue& store, const std::string& key, const std::string& value) {
  if (transport::Error error = store.set(key, value)) throw std::runtime_error(error.text());
}

inline std::string hear(KeyValue& store, const std::string& key) {
  transport::Result<std::string> value = store.get(key, soon());
  if (!value.ok()) throw std::runtime_error(value.error().text());
  return value.value();
}

// Stops this process; another rank ends it with killStopped().
inline void stop(KeyValue& store) {
  say(store, "stopped", std::to_string(::getpid()));
  ::raise(SIGSTOP);
}
inline void killStopped(KeyValue& store) { ::kill(std::stoi(hear(store, "stopped")), SIGKILL); }

// All ranks of a test come here before any goes on.
inline void meet(KeyValue& store, int rank, int size, const std::string& where) {
  say(store, where + std::to_string(rank), "here");
  for (int other = 0; other < size; ++other)
    hear(store, where + std::to_string(other));
}

}  // namespace weft::collectives
